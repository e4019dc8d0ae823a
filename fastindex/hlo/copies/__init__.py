"""What HLO modules move because of layouts: where, why, how much. Text is read, never compiled."""
