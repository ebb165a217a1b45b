"""The routes of OpenAI's API for sound: speech to text, and text to speech."""
