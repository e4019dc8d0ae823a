"""An emulator of the GPU's instructions, as far as our kernels take them: PTX read, checked and run without a GPU.

`reading` splits the text, `encoding` turns it into the numbers that `interpreter.c` runs, `emulator` holds memory and
launches. What is not known is an error with its line. No part of the package is in here, and no GPU's time.
"""
