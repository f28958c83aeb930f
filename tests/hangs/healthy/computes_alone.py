from start import *

begin()
while True:
    value = sum(range(1000))
