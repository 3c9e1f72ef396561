package smtpwire

import (
	"slices"
	"testing"
)

func TestKnownKeywords(t *testing.T) {
	t.Parallel()
	got := KnownKeywords([]string{"smtputf8", "silent-discard", "Dsn", "PIPELINING", "dsn"})
	if want := []string{"PIPELINING", "DSN", "SMTPUTF8"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if got := KnownKeywords(nil); got != nil {
		t.Errorf("got %q of nothing", got)
	}
}
