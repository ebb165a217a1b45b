"""Run loaded models: in this process or in processes of their own."""
