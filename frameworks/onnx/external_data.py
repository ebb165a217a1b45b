"""External data that is to be read into memory; left alone, ONNX Runtime maps it and copies what it packs anew."""

from pathlib import Path

import onnxruntime as ort


def read_external_data(options: ort.SessionOptions, path: Path, locations: frozenset[str]) -> None:
    """Has the session of the graph at `path` take its external data from memory, into which it is read here.

    `locations`: as the graph names its files. ONNX Runtime does not ask where bytes in memory came from, so if any of
    them is outside the graph's folder, symbolic links followed, none is read: it then refuses the graph by itself.
    """
    folder = path.parent.resolve()
    files = {location: (folder / location).resolve() for location in sorted(locations)}
    is_inside = all(
        file.is_relative_to(folder) and not Path(location).is_absolute() for location, file in files.items()
    )
    if files and is_inside:
        contents = [file.read_bytes() for file in files.values()]
        options.add_external_initializers_from_files_in_memory([*files], contents, [len(each) for each in contents])
