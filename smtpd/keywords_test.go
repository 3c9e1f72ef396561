package smtpd

import (
	"os"
	"regexp"
	"testing"

	"posthaste/internal/smtpwire"
)

// What the reply to EHLO may announce can be named in smtpd_discard_ehlo_keywords, and is then named
// in the log.
func TestEveryKeywordIsKnown(t *testing.T) {
	t.Parallel()
	source, err := os.ReadFile("commands.go")
	if err != nil {
		t.Fatal(err)
	}
	announced := regexp.MustCompile(`\tadd\("([^"]+)", "`).FindAllSubmatch(source, -1)
	if len(announced) < 10 {
		t.Fatalf("%d keywords found in commands.go", len(announced))
	}
	for _, a := range announced {
		if keyword := string(a[1]); len(smtpwire.KnownKeywords([]string{keyword})) != 1 {
			t.Errorf("%s is announced, and unknown to smtpwire.KnownKeywords", keyword)
		}
	}
}
