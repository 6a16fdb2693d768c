"""Many runs for one answer: comparing, tuning, planning what runs will cost."""
