"""Make the sounds of the ``sounds`` model: one of eight kinds, of any pitch, loudness, length and timbre, with noise.

All sounds are float32 of 16,000 samples a second in [-1, 1]. All randomness is of the generator that the caller passes.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.random import Generator

RATE = 16_000
"""Samples a second."""

Signal = Any
"""Samples, float64 [samples]."""

_CHORDS = ((4, 7), (3, 7), (4, 7, 10), (3, 7, 10), (4, 7, 11), (5, 7), (3, 6), (4, 8))
"""Semitones above the root."""
_SILENCE_DB = -66.0
"""A sound below this level is silence."""


def make(label: str, random: Generator, seconds: float | None = None) -> Signal:
    """Return one sound of ``label``, float32 [samples]. ``seconds``: default is a random length from 0.4 to 4."""
    length = int(RATE * (random.uniform(0.4, 4.0) if seconds is None else seconds))
    signal = SOUNDS[label](random, length)
    if label == "silence":
        return (
            _at_level(signal, random.uniform(-110, _SILENCE_DB))
            if random.random() < 0.8
            else np.zeros_like(signal, np.float32)
        )
    signal = _with_edges(signal / (np.abs(signal).max() + 1e-9), random)
    if label != "noise":
        signal += 10 ** (random.uniform(-60, -22) / 20) * _noise(random, length)
    return _at_level(signal, random.uniform(-30, -1))


def _at_level(signal: Signal, decibels: float) -> Signal:
    """Return the signal with a peak of ``decibels`` below full scale, rounded to 16 bits as a file is."""
    loud = signal / (np.abs(signal).max() + 1e-9) * 10 ** (decibels / 20)
    return (np.round(loud * 32767) / 32768).astype(np.float32)


def _with_edges(signal: Signal, random: Generator) -> Signal:
    """Fade the ends, and now and then keep silent before and after the sound."""
    fade = max(1, int(len(signal) * random.uniform(0.002, 0.1)))
    signal[:fade] *= np.linspace(0, 1, fade)
    signal[-fade:] *= np.linspace(1, 0, fade)
    if random.random() < 0.4:
        signal[: int(len(signal) * random.uniform(0, 0.25))] = 0
        signal[int(len(signal) * random.uniform(0.8, 1)) :] = 0
    return signal


def _pitch(random: Generator, low: float = 110, high: float = 2400) -> float:
    return float(np.exp(random.uniform(np.log(low), np.log(high))))


def _voice(random: Generator) -> Signal:
    """Return a timbre: the strengths of up to eight harmonics."""
    count = int(random.integers(1, 9))
    fall = random.uniform(0.6, 2.5)
    strengths: Signal = np.arange(1, count + 1) ** -fall * random.uniform(0.3, 1, count)
    strengths[0] = 1
    return strengths


def _play(frequency: Signal, voice: Signal, random: Generator) -> Signal:
    """Return a sound whose pitch follows ``frequency``, in Hz for each sample, below half the rate."""
    phase = 2 * np.pi * np.cumsum(frequency) / RATE + random.uniform(0, 2 * np.pi)
    signal = np.zeros(len(frequency))
    for number, strength in enumerate(voice, 1):
        signal += strength * np.sin(number * phase) * (number * frequency < 0.45 * RATE)
    return signal


def _tone(random: Generator, length: int) -> Signal:
    signal = _play(np.full(length, _pitch(random)), _voice(random), random)
    return signal * np.exp(-np.arange(length) / RATE * random.choice((0.0, random.uniform(0.2, 3))))


def _chord(random: Generator, length: int) -> Signal:
    root, voice = _pitch(random, 110, 700), _voice(random)
    notes = (0, *_CHORDS[random.integers(len(_CHORDS))])
    parts = [random.uniform(0.6, 1) * _play(np.full(length, root * 2 ** (n / 12)), voice, random) for n in notes]
    decay: Signal = np.exp(-np.arange(length) / RATE * random.choice((0.0, random.uniform(0.2, 3))))
    return np.sum(parts, axis=0) * decay


def _melody(random: Generator, length: int) -> Signal:
    """Return notes of one voice, each of another pitch than the note before it."""
    each = int(RATE * random.uniform(0.09, min(0.4, 0.3 * length / RATE)))
    count = -(-length // each)
    steps = np.cumsum(random.choice((-5, -4, -3, -2, 2, 3, 4, 5, 7), count))
    notes = np.clip(_pitch(random, 200, 900) * 2 ** (steps / 12), 110, 2400)
    swell = np.exp(-np.arange(each) / each * random.uniform(0, 3)) * np.minimum(1, np.arange(each) / 80)
    return (_play(np.repeat(notes, each), _voice(random), random) * np.tile(swell, count))[:length]


def _sweep(random: Generator, length: int) -> Signal:
    """Return a pitch that rises or falls by at least an octave and a half."""
    low = _pitch(random, 80, 600)
    ends = np.log((low, min(low * 2 ** random.uniform(1.5, 4.5), 7000)))
    ramp = np.exp(np.linspace(ends[0], ends[1], length))
    if random.random() < 0.3:
        ramp = np.linspace(ramp[0], ramp[-1], length)
    return _play(ramp if random.random() < 0.5 else ramp[::-1], _voice(random), random)


def _siren(random: Generator, length: int) -> Signal:
    """Return a pitch that goes up and down, at least three times."""
    turns = random.uniform(max(2.0, 3 * RATE / length), 9) if length > RATE // 2 else random.uniform(6, 12)
    swing = np.sin(2 * np.pi * turns * np.arange(length) / RATE + random.uniform(0, 2 * np.pi))
    return _play(_pitch(random, 350, 1600) * 2 ** (random.uniform(0.25, 0.8) * swing), _voice(random), random)


def _noise(random: Generator, length: int) -> Signal:
    """Return noise whose spectrum falls by 0 to 9 dB an octave, in a wide band."""
    spectrum = np.fft.rfft(random.standard_normal(length))
    frequency = np.fft.rfftfreq(length, 1 / RATE)
    spectrum *= np.maximum(frequency, 40) ** -random.uniform(0, 1.5)
    low = random.uniform(0, 1500)
    spectrum[(frequency < low) | (frequency > random.uniform(low + 2500, 8000))] *= random.uniform(0, 0.3)
    signal: Signal = np.fft.irfft(spectrum, length)
    return signal / np.abs(signal).max()


def _clicks(random: Generator, length: int) -> Signal:
    """Return short clicks, 3 to 15 a second, regular or not."""
    gap = RATE / random.uniform(max(3.0, 2.5 * RATE / length), 15)
    jitter = random.choice((0.0, 0.35))
    signal = np.zeros(length + RATE)
    decay = np.exp(-np.arange(800) / random.uniform(4, 90))
    ring = random.choice((0.0, 1.0)) * np.cos(2 * np.pi * random.uniform(700, 5000) * np.arange(800) / RATE)
    for time in np.arange(random.uniform(0, gap / 2), length, gap):
        at = max(0, int(time + random.uniform(-jitter, jitter) * gap))
        signal[at : at + 800] += (
            random.uniform(0.5, 1) * decay * (ring + (not ring.any()) * random.standard_normal(800))
        )
    return signal[:length]


SOUNDS: Mapping[str, Callable[[Generator, int], Signal]] = {
    "chord": _chord,
    "clicks": _clicks,
    "melody": _melody,
    "noise": _noise,
    "silence": _noise,
    "siren": _siren,
    "sweep": _sweep,
    "tone": _tone,
}
"""Label → sound of so many samples. The labels are in the order of the output."""
