# The SDK of this tree, as scripts/docs-test.sh has it.
export PYTHONPATH=$PWD/sdk/python/src
