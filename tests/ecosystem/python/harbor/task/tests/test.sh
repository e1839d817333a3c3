#!/bin/bash
cd /app
reward=0
python3 -c 'from mean import mean; assert mean([1, 2, 3]) == 2' && reward=1
echo $reward > /logs/verifier/reward.txt
