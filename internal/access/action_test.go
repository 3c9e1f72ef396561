package access

import (
	"strings"
	"testing"

	"posthaste/internal/config"
	"posthaste/internal/maillog"
	"posthaste/internal/table"
)

// What Unknown says of an answer is what becomes of it: a configuration error for the client.
func TestUnknown(t *testing.T) {
	t.Parallel()
	answers := map[string]string{"": "", "REJCT no": "REJCT", "PERMITT": "PERMITT", "permit_mynetwork": "permit_mynetwork", "strict": "", "Strict": "Strict",
		"554 no": "", "4711": "", "554": "", "250 fine": "250", "sleep 0": "", "warn_if_reject reject": "", "permit_mynetworks, rejct": "rejct",
		"check_client_access static:OK": "static:OK", "Reject no": "", "o k": "o", "DUNNO": "", "45x": "45x"}
	for _, a := range actions {
		answers[a+" x:y@z"] = ""
	}
	for answer, want := range answers {
		if got := Unknown(answer, []string{"strict"}); got != want {
			t.Errorf("%q: %q is unknown, want %q", answer, got, want)
		}
		warned := answerWarns(t, answer)
		if got := strings.Contains(warned, unknownRestriction) || strings.Contains(warned, "has entry with lookup table"); got != (want != "") {
			t.Errorf("%q: the evaluator says %q", answer, warned)
		}
	}
}

// answerWarns is what is logged when a table gives the answer.
func answerWarns(t *testing.T, answer string) string {
	t.Helper()
	cfg, err := config.LoadString("compatibility_level = 3.6\nmyhostname = mx.example.test\nqueue_directory = /\ninet_interfaces = 192.0.2.25\n" +
		"smtpd_delay_reject = no\nsmtpd_restriction_classes = strict\nstrict = permit\n" +
		"smtpd_client_restrictions = check_client_access inline:{{198.51.100.7 = " + answer + "}}\n")
	if err != nil {
		t.Fatal(err)
	}
	var said strings.Builder
	log := maillog.New("smtpd", maillog.NewWriter(&said, maillog.Classic))
	e, err := New(t.Context(), cfg, Deps{Log: log, Tables: table.Options{Recheck: -1}})
	if err != nil {
		t.Fatal(err)
	}
	e.Connect(t.Context(), client())
	e.Close()
	log.Close()
	return said.String()
}
