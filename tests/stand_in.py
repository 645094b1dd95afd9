"""Stand-ins for the stored features: the real names of classes and domains, few and narrow rows that are well apart."""

from __future__ import annotations

from pathlib import Path

import numpy as np

WIDTH, ROWS = 6, 4
"""Of the features; of a class in a domain."""
OFFICE31 = (
    "back_pack bike bike_helmet bookcase bottle calculator desk_chair desk_lamp desktop_computer file_cabinet headphones "
    "keyboard laptop_computer letter_tray mobile_phone monitor mouse mug paper_notebook pen phone printer projector "
    "punchers ring_binder ruler scissors speaker stapler tape_dispenser trash_can"
).split()
OFFICE_HOME = (
    "Alarm_Clock Backpack Batteries Bed Bike Bottle Bucket Calculator Calendar Candles Chair Clipboards Computer Couch "
    "Curtains Desk_Lamp Drill Eraser Exit_Sign Fan File_Cabinet Flipflops Flowers Folder Fork Glasses Hammer Helmet Kettle "
    "Keyboard Knives Lamp_Shade Laptop Marker Monitor Mop Mouse Mug Notebook Oven Pan Paper_Clip Pen Pencil Postit_Notes "
    "Printer Push_Pin Radio Refrigerator Ruler Scissors Screwdriver Shelf Sink Sneakers Soda Speaker Spoon TV Table "
    "Telephone ToothBrush Toys Trash_Can Webcam"
).split()
"""As the files spell them."""


def write(folder: Path) -> Path:
    """Both files; returns the folder, which `PERDURE_DATA` may name."""
    for number, (file, classes, domains) in enumerate(
        (
            ("office31_resnet50.npz", OFFICE31, ("amazon", "dslr", "webcam")),
            ("officehome_resnet50.npz", OFFICE_HOME, ("Art", "Clipart", "Product", "Real World")),
        )
    ):
        rng = np.random.default_rng(number)
        domain, y = (part.ravel() for part in np.indices((len(domains), len(classes), ROWS))[:2])
        centres, shifts = 3 * rng.normal(size=(len(classes), WIDTH)), rng.normal(size=(len(domains), WIDTH))
        np.savez(
            folder / file,
            X=(centres[y] + shifts[domain] + 0.1 * rng.normal(size=(len(y), WIDTH))).astype(np.float16),
            y=y.astype(np.int16),
            domain=domain.astype(np.int8),
            class_names=np.array(classes),
            domain_names=np.array(domains),
        )
    return folder
