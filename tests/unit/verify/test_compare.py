"""The resources of Spark for a check."""

from __future__ import annotations

import pytest

from kmigrate.verify.compare import SparkChoice, spark_choice

JAVA = "spark.driver.extraJavaOptions"


def test_a_small_check_on_this_machine_does_without_the_second_compiler() -> None:
    assert "TieredStopAtLevel=1" in spark_choice("local[*]", []).sized(1_000_000).conf[JAVA]
    assert "TieredStopAtLevel" not in spark_choice("local[*]", []).sized(1_000_001).conf[JAVA]


@pytest.mark.parametrize("master", ["spark://host:7077", "yarn", "k8s://https://host:443"])
def test_another_machine_s_spark_is_left_as_it_is(master: str) -> None:
    choice = spark_choice(master, ["spark.executor.cores=2"])
    assert choice.sized(1) == choice


def test_what_the_user_says_of_java_stands() -> None:
    choice = SparkChoice("local[2]", {JAVA: "-Xss4m", "spark.driver.memory": "2g"})
    assert choice.sized(1) == choice
