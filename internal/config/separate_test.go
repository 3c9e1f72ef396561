package config

import (
	"slices"
	"strings"
	"testing"
)

func TestSeparateOptions(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"":                          "",
		"-v -o a=b x -oc=d":         "-v -o a=b x -oc=d",
		"-vo a=b":                   "-v -o a=b",
		"-vvoa=b -D":                "-vv -o a=b -D",
		"-oa=b":                     "-o a=b",
		"-o":                        "-o",
		"-vo":                       "-v -o",
		"-x -o a=b":                 "-x -o a=b",
		"flags=R -o":                "flags=R -o",
		"-o a=b - -o c=d":           "-o a=b - -o c=d",
		"-Dvo smtpd_x=-vo -v -vv y": "-Dv -o smtpd_x=-vo -v -vv y",
	} {
		if got := strings.Join(SeparateOptions(strings.Fields(in)), " "); got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
	cfg, err := LoadString("myhostname = a.example.org\n")
	if err != nil {
		t.Fatal(err)
	}
	services, faulty := LoadMasterString("smtp inet n - n - - smtpd -vo smtpd_banner=x -o biff=no\n", cfg)
	if len(faulty) > 0 {
		t.Fatal(faulty)
	}
	if over := services[0].Overrides(); !slices.Equal(over, []Override{{Name: "smtpd_banner", Value: "x"}, {Name: "biff", Value: "no"}}) {
		t.Errorf("settings of the service: %v", over)
	}
}
