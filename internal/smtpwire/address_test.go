package smtpwire

import (
	"bufio"
	"os"
	"strconv"
	"strings"
	"testing"
)

// departures are the reasons why an address is judged otherwise than its kind
// asks for.
var departures = map[string]string{
	"dots":    "RFC 5321 section 4.1.2 allows no two dots in a row and none at the ends; there are mailboxes that have them",
	"local":   "a local part alone is an address at this host, as RFC 5321 section 4.1.1.3 says of postmaster",
	"long":    "RFC 5321 section 4.5.3.1 asks for 64 octets at least; more is no danger",
	"name":    "reject_non_fqdn_recipient and reject_unknown_recipient_domain judge names of hosts, who asks for it",
	"literal": "a literal that is none cannot be delivered to, and is returned by who finds that out",
	"space":   "white space within the angle brackets is left out, many clients put it there",
	"quoted":  "a backslash before a character over 127 is as good as the character (RFC 6531 section 3.3)",
	"loose":   "with strict_rfc821_envelopes = no, comments, blanks and odd quotes are taken as Postfix takes them",
}

// TestAddresses judges addresses that parsers are known to get wrong.
func TestAddresses(t *testing.T) {
	t.Parallel()
	f, err := os.Open("testdata/addresses")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	n, used := 0, make(map[string]bool)
	for lines := bufio.NewScanner(f); lines.Scan(); {
		line := lines.Text()
		if strings.HasPrefix(line, "#") {
			continue
		}
		kind, rest, _ := strings.Cut(line, " ")
		departure, quoted, _ := strings.Cut(rest, " ")
		address, err := strconv.Unquote(quoted)
		if err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		n++
		want := kind == "valid"
		if departure == "loose" {
			used[departure] = true
		} else if departure != "-" {
			want, used[departure] = !want, true
			if departures[departure] == "" {
				t.Errorf("%s: there is no departure %q", line, departure)
			}
		}
		for _, strict := range []bool{true, false} {
			if departure == "loose" {
				want = !strict
			}
			_, refusal := ParseRcpt("TO:<"+address+">", ExtSMTPUTF8, strict)
			if got := refusal == nil; got != want {
				t.Errorf("%s: taken %v (strict %v), want %v", line, got, strict, want)
			}
		}
	}
	if n < 150 || len(used) != len(departures) {
		t.Errorf("%d addresses, departures %v", n, used)
	}
}
