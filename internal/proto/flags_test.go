package proto

import "testing"

func TestAutoUTF8(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		classes []string
		source  string
		want    SubmitFlags
	}{
		{nil, "sendmail", 0},
		{[]string{"sendmail", "verify"}, "sendmail", SubmitAutoUTF8},
		{[]string{"sendmail", "verify"}, "verify", SubmitAutoUTF8},
		{[]string{"sendmail", "verify"}, "smtpd", 0},
		{[]string{"all"}, "bounce", SubmitAutoUTF8},
	} {
		if got := AutoUTF8(c.classes, c.source); got != c.want {
			t.Errorf("AutoUTF8(%q, %s) = %v, want %v", c.classes, c.source, got, c.want)
		}
	}
}
