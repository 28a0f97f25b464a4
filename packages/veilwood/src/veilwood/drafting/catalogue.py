# SPDX-License-Identifier: Apache-2.0
"""Catalogue of publicly known bounds and categories, by column name. Independent of any data.

Its bounds need no source: for example, no age exceeds 120 in any table.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any, Final


@dataclass(frozen=True)
class KnownColumn:
    """Catalogue entry: a title, the column names it matches, and the publicly known bounds or values."""

    title: str
    names: str  # regular expression for words of a column name
    lower: float | None = None
    upper: float | None = None
    values: tuple[str, ...] = ()
    prefix: int | None = None

    def matches_name(self, name: str) -> bool:
        """Return True if the entry matches a column name.

        >>> CATALOGUE[0].title, CATALOGUE[0].matches_name("Age_at_admission"), CATALOGUE[0].matches_name("wage")
        ('age in years', True, False)
        """
        words = re.sub(r"(?<=[a-z])(?=[A-Z])|[\W_]+", " ", name).casefold()  # split "aB" and "a_b" into words
        return re.search(rf"(?:^|[ \d])(?:{self.names})(?:$|[ \d])", words) is not None

    def to_dict(self) -> dict[str, Any]:
        """Return the entry as keys of a schema's column."""
        if self.values:
            return {"values": list(self.values)} | ({} if self.prefix is None else {"prefix": self.prefix})
        return {"lower": self.lower, "upper": self.upper}


CATALOGUE: Final = (
    KnownColumn("age in years", "age|alter|lebensalter", 0, 120),
    KnownColumn("hour of the day", "hour|stunde|uhrzeit", 0, 23),
    KnownColumn("minute", "minute", 0, 59),
    KnownColumn("day of the week", "weekday|wochentag|dow", 1, 7),
    KnownColumn("day of the month", "day of month|monatstag|tag", 1, 31),
    KnownColumn("week of the year", "week|woche|kalenderwoche|kw", 1, 53),
    KnownColumn("month", "month|monat", 1, 12),
    KnownColumn("quarter of the year", "quarter|quartal", 1, 4),
    KnownColumn("year", "year|jahr|geburtsjahr|yob", 1900, 2100),
    KnownColumn("percent", "percent|pct|prozent|spo2|sats|saturation", 0, 100),
    KnownColumn("share", "share|ratio|fraction|proportion|probability|anteil|quote", 0, 1),
    KnownColumn("weight of a person in kg", "weight|gewicht|weight kg", 0, 300),
    KnownColumn("height of a person in cm", "height|groesse|größe|koerpergroesse|körpergröße", 30, 250),
    KnownColumn("body mass index", "bmi", 5, 100),
    KnownColumn("body temperature in degrees C", "temp|temperature|temperatur|fieber", 25, 45),
    KnownColumn("heart rate per minute", "pulse|puls|heart rate|heartrate|hr|herzfrequenz", 0, 300),
    KnownColumn("breaths a minute", "resp|respiration|respiratory rate|atemfrequenz", 0, 100),
    KnownColumn("systolic pressure in mm Hg", "systolic|sys|sbp|systolisch|rr sys", 0, 300),
    KnownColumn("diastolic pressure in mm Hg", "diastolic|dia|dbp|diastolisch|rr dia", 0, 200),
    KnownColumn("Apgar score", "apgar", 0, 10),
    KnownColumn("Glasgow coma scale", "gcs|glasgow", 3, 15),
    KnownColumn("pain score", "pain|schmerz|nrs", 0, 10),
    KnownColumn("days of a stay", "stay|los|length of stay|verweildauer|liegedauer|days", 0, 365),
    KnownColumn("number of children", "children|kids|kinder", 0, 20),
    KnownColumn("latitude", "lat|latitude", -90, 90),
    KnownColumn("longitude", "lon|lng|longitude", -180, 180),
    KnownColumn(
        "postcodes by their first two digits",
        "plz|postleitzahl|postcode|post code|postal code|zip|zipcode",
        values=tuple(f"{number:02d}" for number in range(100)),
        prefix=2,
    ),
    *(
        KnownColumn(title, names, values=tuple(values.split(" ")))
        for title, names, lists in (
            ("yes or no", ".*", "no yes,No Yes,N Y,n y,nein ja,Nein Ja,N J,n j,False True"),
            ("a code of 0 and 1", ".*", "0 1"),
            (
                "sex",
                "sex|gender|geschlecht",
                "female male other,Female Male Other,F M X,f m x,m w d,M W D,männlich weiblich divers",
            ),
            (
                "blood group",
                "blood|blood group|blood type|blutgruppe|bloodgroup",
                "A B AB 0,A B AB O,A+ A- B+ B- AB+ AB- 0+ 0-,A+ A- B+ B- AB+ AB- O+ O-",
            ),
            ("days of the week", ".*", "Mon Tue Wed Thu Fri Sat Sun,Mo Di Mi Do Fr Sa So"),
        )
        for values in lists.split(",")
    ),
)
"""Entries in order of precedence: the first match applies."""


def known_bounds(name: str) -> KnownColumn | None:
    """Return the known bounds of a numeric column of this name, or None.

    >>> known_bounds("alter")
    KnownColumn(title='age in years', names='age|alter|lebensalter', lower=0, upper=120, values=(), prefix=None)
    """
    return next((usual for usual in CATALOGUE if usual.lower is not None and usual.matches_name(name)), None)


def known_values(name: str, categories: Collection[str]) -> KnownColumn | None:
    """Return the catalogue entry whose values include all given categories (at least two), or nearly all prefixes.

    >>> known_values("smoker", ["yes", "no"]).values
    ('no', 'yes')
    """
    return next((usual for usual in _matching_lists(name, categories)), None)


def _matching_lists(name: str, categories: Collection[str]) -> Iterator[KnownColumn]:
    for usual in CATALOGUE:
        if not usual.values or not usual.matches_name(name):
            continue
        seen = {text[: usual.prefix] for text in categories}
        known = len(seen.intersection(usual.values))
        # A few postcodes may be foreign or mistyped, so prefixes need not match completely.
        if (known >= 0.95 * len(seen) > 0) if usual.prefix else (len(seen) == known >= 2):
            yield usual
