"""The choice of clusters, link, topics and groups: by flags, by what is mirrored, or by questions."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from kmigrate.cli.base import wizard
from kmigrate.cli.base.call import Call
from kmigrate.cli.base.targets import find_target
from kmigrate.cli.base.words import Text
from kmigrate.cli.guide.answers import Answers
from kmigrate.cli.guide.standing import Standing
from kmigrate.cli.guide.survey import Survey, survey_source
from kmigrate.cli.guide.views import group_title, survey_view, topic_title
from kmigrate.errors import Refused, UsageError
from kmigrate.workflow import verbs

__all__ = ["DEFAULT_LINK", "Selection"]

DEFAULT_LINK = "migration"


@dataclass
class Selection:
    """Completes the answers of one guide."""

    call: Call
    answers: Answers
    asks: bool

    def settle_clusters(self, at: Standing) -> None:
        """Complete target, source and link; a link that exists decides about its clusters."""
        answers, settings = self.answers, self.call.settings
        answers.target = at.target or answers.target or asyncio.run(self._target())
        others = sorted(name for name in settings.clusters if name != answers.target)
        answers.source = at.source or answers.source or (others[0] if len(others) == 1 else "")
        if not answers.source:
            answers.source = self.call.required(None, "--source", "the cluster to copy from", iter(others))
        default = settings.defaults.link or DEFAULT_LINK
        if not (at.link or answers.link):
            answers.link = wizard.type_in("Name of the new link?", default) if self.asks else default
        answers.link = at.link or answers.link
        verbs.check_link_name(answers.link)

    async def _target(self) -> str:
        settings = self.call.settings
        try:
            return await find_target(settings, self.call.target)
        except UsageError as error:
            if not self.asks or error.ref != "no-target":
                raise
        return wizard.choose("Which cluster is the target?", [(name, name) for name in sorted(settings.clusters)])

    def look(self) -> Survey:
        """Return what the source holds, and show the tables."""
        with self.call.out.waiting(f"looking at topics and groups of {self.answers.source}"):
            survey = asyncio.run(survey_source(self.call.settings.cluster(self.answers.source)))
        if not self.call.json:
            self.call.out.show(survey_view(survey))
        return survey

    def choose_names(self, at: Standing, survey: Survey) -> None:
        """Complete topics and groups; without a topic there is nothing to do."""
        answers = self.answers
        if not answers.topics and self.asks:
            self._ask_names(at, survey)
        elif not answers.topics and answers.run:
            answers.topics = [each.topic for each in at.topics]
            answers.groups = answers.groups or [each.group for each in at.groups]
        if not answers.topics and (answers.run or answers.write):
            raise UsageError(
                "missing-value",
                "--topic is missing: the topics to move",
                still_true="nothing was changed",
                next_step="give --topic TOPIC, and --group GROUP for the groups that read the topic",
            )
        self._check_names(at, survey)

    def _ask_names(self, at: Standing, survey: Survey) -> None:
        out, answers = self.call.out, self.answers
        if not survey.topics:
            out.show(Text(f"{survey.cluster} has no topic that can be mirrored.", style="yellow"))
            return
        known = [each.topic for each in at.topics]
        answers.topics = wizard.choose_some(
            "Which topics move?", [(topic_title(each), each.topic) for each in survey.topics], known
        )
        if not answers.topics:
            out.show(Text("No topic was chosen, so there is nothing to do."))
        elif survey.groups and not answers.groups:
            readers = survey.readers(answers.topics)
            out.show(Text(f"Groups that read these topics are marked: {', '.join(readers) or 'none'}."))
            answers.groups = wizard.choose_some(
                "Which groups move with them?", [(group_title(each), each.group) for each in survey.groups], readers
            )

    def _check_names(self, at: Standing, survey: Survey) -> None:
        """Refuse topics that the source lacks, and name groups that would be left behind."""
        known = {each.topic for each in survey.topics} | {each.topic for each in at.topics}
        unknown = [name for name in self.answers.topics if name not in known]
        if unknown:
            raise Refused(
                "unknown-topic",
                f"cluster {survey.cluster} has no topic {', '.join(unknown)} that can be mirrored",
                still_true="nothing was changed",
                next_step="kmigrate guide shows the topics",
            )
        moving = {*self.answers.groups, *(each.group for each in at.groups)}
        left = [name for name in survey.readers(self.answers.topics) if name not in moving]
        if left:
            self.call.out.note(f"these groups read the topics and would stay behind: {', '.join(left)}")
