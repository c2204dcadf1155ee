"""Defects of alerts: each is told at least once, at most twice, of what happened, and to nobody else."""

from __future__ import annotations

from mutants.defect import Defect, of

PURE, SENDER = "workflows/state/alerting.py", "workflows/alerts/sender.py"
MOVES, WRITING = "workflows/database/alerts/deliveries.py", "workflows/database/alerts/writing.py"
MAIL, TLS, APPRISE = "workflows/alerts/mail.py", "workflows/alerts/sending.py", "workflows/alerts/by_apprise.py"
SENDING, SERVICES = "workflows/alert_sending", "workflows/alert_services"
DIES = "a_mail_comes_though_its_sender_dies_at_any_step"

DEFECTS = (
    # At least once, at most twice
    Defect(
        "FlowAlerts",
        "what a dead sender had in hand is forgotten",
        SENDER,
        "        if strays and self._remaining_s() > 0.0:\n",
        "        if False:\n",
        of(SENDING, DIES, on="before it is out-1-file"),
    ),
    Defect(
        "FlowAlerts",
        "a delivery is marked only once it was sent",
        SENDER,
        "            answer, error = self._sent(taken)\n            answered_at = self._now()\n"
        "            self._write(taken, answer, error, answered_at)\n",
        "            answer, error, answered_at = Answer.SENT, '', self._now()\n"
        "            self._write(taken, answer, error, answered_at)\n"
        "            self._sent(taken)\n",
        of(SENDING, DIES, on="before it is out-1-file"),
    ),
    Defect(
        "FlowAlerts",
        "a doubt is no doubt the second time",
        PURE,
        "        if doubts >= MOST_DOUBTS:\n",
        "        if doubts > MOST_DOUBTS:\n",
        of(SENDING, "a_mail_whose_second_sender_dies_too_is_not_sent_a_third_time"),
    ),
    Defect(
        "FlowAlerts",
        "a doubt is told as sent",
        PURE,
        "    if answer is Answer.SENT:\n",
        "    if answer in {Answer.SENT, Answer.DOUBT}:\n",
        of(SENDING, "a_mail_whose_answer_is_missing_is_sent_once_more", on="drop at the end"),
    ),
    Defect(
        "FlowAlerts",
        "a message whose answer broke was refused",
        MAIL,
        '        raise NotSent(Answer.DOUBT, f"the connection broke',
        '        raise NotSent(Answer.REFUSED, f"the connection broke',
        of(SENDING, "a_mail_whose_answer_is_missing_is_sent_once_more", on="drop at the end"),
    ),
    Defect(
        "FlowAlerts",
        "what is in hand looks like a stray",
        SENDER,
        "self._sending.doubt(connection, self._mine.__contains__, self._now())",
        "self._sending.doubt(connection, frozenset().__contains__, self._now())",
        of(SENDING, "what_a_slow_channel_has_in_hand_is_no_stray_of_its_own_sender"),
    ),
    # Claims
    Defect(
        "FlowAlerts",
        "a former sender takes on",
        MOVES,
        "        self.guard(connection)\n        mine = sa.update(delivery).where(delivery.c.id == number",
        "        mine = sa.update(delivery).where(delivery.c.id == number",
        of(SENDING, "a_former_sender_that_wakes_takes_nothing_more", on="file"),
    ),
    Defect(
        "FlowAlerts",
        "a former sender becomes the sender",
        MOVES,
        "mine = sa.update(about).where(about.c.name == SENDER, self.token >= _TOKEN)",
        "mine = sa.update(about).where(about.c.name == SENDER)",
        of(SENDING, "a_sender_with_an_older_hold_does_not_begin", on="file"),
    ),
    Defect(
        "FlowAlerts",
        "an answer counts that somebody else waits for",
        MOVES,
        "        return (delivery.c.state == DeliveryState.SENDING.value, delivery.c.token == self.token)\n",
        "        return (delivery.c.id > 0,)\n",
        of(SENDING, "a_no_that_a_frozen_sender_hears_changes_nothing_once_another_has_sent_it"),
    ),
    Defect(
        "FlowAlerts",
        "an answer that was not written is forgotten",
        SENDER,
        "                if self._clock.wait(self._stopping, _AGAIN_S):\n",
        "                if True:\n",
        of(SENDING, "an_answer_that_the_database_did_not_take_is_written_once_it_does"),
    ),
    Defect(
        "FlowAlerts",
        "it sends without a hold",
        SENDER,
        "if self._stopping.is_set() or self._remaining_s() <= 0.0 or not self._deliver(each):",
        "if self._stopping.is_set() or not self._deliver(each):",
        of(SENDING, "nothing_is_begun_once_the_hold_is_not_certain"),
    ),
    # The schedule of tries
    Defect(
        "FlowAlerts",
        "waits do not grow",
        PURE,
        "FIRST_WAIT_S * 2.0 ** max(0, tries - 1)",
        "FIRST_WAIT_S",
        of(SENDING, "a_channel_that_refuses_is_asked_again_with_growing_waits_and_given_up_at_last"),
    ),
    Defect(
        "FlowAlerts",
        "what is refused is tried for ever",
        PURE,
        "if answer is Answer.REJECTED or tries >= MOST_TRIES:",
        "if answer is Answer.REJECTED:",
        of(SENDING, "a_channel_that_refuses_is_asked_again_with_growing_waits_and_given_up_at_last"),
    ),
    Defect(
        "FlowAlerts",
        "what is rejected is tried again",
        PURE,
        "if answer is Answer.REJECTED or tries >= MOST_TRIES:",
        "if tries >= MOST_TRIES:",
        of(SENDING, "a_webhook_that_redirects_or_rejects_is_asked_once", on="404"),
    ),
    Defect(
        "FlowAlerts",
        "a delivery is taken before its time",
        MOVES,
        "        mine = mine.where(delivery.c.next_at <= now)\n",
        "",
        of(SENDING, "a_delivery_that_was_put_off_meanwhile_is_not_taken"),
    ),
    Defect(
        "FlowAlerts",
        "a channel that refuses is asked by all that waits for it",
        SENDER,
        "            self._rest(taken.by, answered_at)\n            return False\n",
        "            return True\n",
        of(SENDING, "a_channel_that_refuses_one_alert_is_left_alone_with_the_others_for_a_while"),
    ),
    # Once for each cause
    Defect(
        "FlowAlerts",
        "the cause of an end is each look at it",
        WRITING,
        'f"{after.run}@{began!r}"',
        'f"{after.run}@{now!r}"',
        of("workflows/alerts", "the_same_end_written_again_is_one_alert", on="memory"),
    ),
    Defect(
        "FlowAlerts",
        "a recovery is the same end",
        WRITING,
        'f"{after.run}@{began!r}"',
        'f"{after.run}"',
        of("workflows/alerts", "a_run_that_is_recovered_or_run_again_and_fails_again_is_told_again", on="memory"),
    ),
    Defect(
        "FlowAlerts",
        "a dry run is told of",
        PURE,
        "    if rule is None or dry:\n",
        "    if rule is None:\n",
        of("workflows/alerts", "a_dry_run_tells_nothing", on="memory"),
    ),
    # Nobody else
    Defect(
        "FlowAlerts",
        "a password goes to a server that nobody vouches for",
        TLS,
        "        return ssl.create_default_context(cafile=ca_file or None)\n",
        "        return ssl._create_unverified_context()\n",
        of(
            SERVICES,
            "a_server_with_a_certificate_of_another_hears_no_password_and_gets_no_mail",
            on="of nobody we trust-starttls",
        ),
    ),
    Defect(
        "FlowAlerts",
        "a password goes without TLS where there is none",
        MAIL,
        '        if options.security == "starttls":\n',
        '        if options.security == "starttls" and server.has_extn("starttls"):\n',
        of(SERVICES, "a_server_that_offers_no_tls_hears_no_password"),
    ),
    Defect(
        "FlowAlerts",
        "a secret that a service repeats is kept",
        SENDER,
        "            return error.answer, line(mask.text(str(error)))\n",
        "            return error.answer, line(str(error))\n",
        of(SENDING, "a_secret_that_a_server_repeats_is_masked_in_what_is_kept"),
    ),
    Defect(
        "FlowAlerts",
        "one channel names several services, and one no tells all again",
        APPRISE,
        "        if len(service) != 1:",
        "        if False:",
        of(SERVICES, "of_several_urls_none_is_told"),
    ),
    # Rows that are mailed
    Defect(
        "FlowAlerts",
        "a task has succeeded though its rows were not kept",
        "workflows/worker/performing.py",
        '            return Ending(Outcome.FAILURE, f"its rows could not',
        '            print(Outcome.FAILURE, f"its rows could not',
        of("workflows/mailed_rows", "rows_that_cannot_be_kept_fail_their_task_and_say_so", on="memory"),
    ),
    Defect(
        "FlowAlerts",
        "secrets are mailed in rows",
        "workflows/worker/performing.py",
        "            rest = memoryview(prepared.mask.whole(data[:MOST_KEPT]))\n",
        "            rest = memoryview(data[:MOST_KEPT])\n",
        of("workflows/mailed_rows", "secrets_are_masked_in_rows", on="memory"),
    ),
    Defect(
        "FlowAlerts",
        "a part of the rows is mailed as all of them",
        "workflows/alerts/rows.py",
        'if _count(data) < int(told.details.get("count_rows") or 0) else ""',
        'if len(data) >= MOST_BYTES else ""',
        of("workflows/mailed_rows", "of_more_rows_than_a_mail_takes_the_beginning_is_kept_and_told", on="memory"),
    ),
)
