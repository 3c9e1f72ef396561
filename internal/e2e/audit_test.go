package e2e

import (
	"bytes"
	"slices"
	"strings"

	"posthaste/internal/audit"
)

// addsUp are the tests at whose ends the books are audited: of all that their mail systems have accepted, by
// their logs, each recipient must have an outcome or be in the queue. Not all tests are
// among them: some damage queues or logs, or have mail move between systems.
var addsUp = []string{
	"TestAnvil", "TestBigAlias", "TestBigLists", "TestBounce", "TestBounceOfBounce", "TestContentMissing",
	"TestDANE", "TestDeferAndFlush", "TestDelayNotices", "TestEximSends", "TestHangingCommand",
	"TestLargeInChroot", "TestLocalMaildir", "TestLogJSON", "TestMTASTS", "TestMailAuth", "TestMailboxes",
	"TestMailboxesOwner", "TestManyDestinations", "TestMboxReader", "TestMembersDelayed",
	"TestMembersFailOneByOne", "TestMembersMoved", "TestMetrics", "TestMilter", "TestMilterAway",
	"TestMilterLocal", "TestMilterReload", "TestMilterVirtualAlias", "TestNarrowQueue",
	"TestOctets", "TestOpenDKIM", "TestPickupReturns", "TestPickupSplits", "TestPipeReportsLikePostfix",
	"TestPostscreen", "TestProviderHasEnough", "TestQueueTools", "TestRefusals", "TestRelay", "TestReloads",
	"TestRequeueToday", "TestRspamd", "TestSMTPSource", "TestSelectedMail", "TestSendmail",
	"TestSendmailProgram", "TestSendmailUsage", "TestShowq", "TestSigned", "TestSignedAnew", "TestSilentHost",
	"TestSpawn", "TestSubmissionClients", "TestSuccessNotices", "TestSuspendedDestination", "TestSwaks",
	"TestTablesProgram", "TestThreadScheduler", "TestTranscripts", "TestVerify", "TestWatch",
}

// addUp audits a mail system that is not running any more.
func (s *system) addUp() {
	test, _, _ := strings.Cut(s.t.Name(), "/")
	if !slices.Contains(addsUp, test) || s.log() == "" {
		return
	}
	var out, errs bytes.Buffer
	if status := audit.Run("audit", []string{"-c", s.path("etc"), s.path("mail.log")}, nil, &out, &errs); status != 0 {
		s.t.Errorf("%s: audit: status %d\n%s%s", s.dir, status, errs.String(), out.String())
	}
}
