"""One bench for each adapter: see triage.testing.adapter_contract."""
