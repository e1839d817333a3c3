# e2b before 2.28, of which crewai-tools takes 2.20, connects to a sandbox by name alone.
unset E2B_SANDBOX_URL
