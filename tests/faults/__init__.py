"""The fault campaign: each part breaks one thing at random and counts. `campaign.py` runs the parts. No tests here."""
