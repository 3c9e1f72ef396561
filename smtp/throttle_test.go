package smtp

import (
	"strings"
	"testing"
)

func TestThrottleReplies(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		list, reply string
		want        bool
	}{
		{"", "421 4.7.28 x", true},
		{"", "450 4.7.28 x", false},
		{"450", "450 4.1.1 x", true},
		{"450, 4.7.28", "451 4.7.28 x", true},
		{"4.7.28", "451 4.7.2 x", false},
		{"4.7.2", "451 4.7.28 x", false},
		{"4.7", "451 4.7.28 x", true},
		{"4.7", "451 4.70.1 x", false},
		{"4.7", "551 4.7.1 x", false},
		{"4.7", "451 x", false},
	} {
		th, err := parseThrottle("smtp_throttle_replies", strings.FieldsFunc(test.list, func(r rune) bool { return r == ' ' || r == ',' }))
		if err != nil {
			t.Fatal(err)
		}
		code, _ := replyCode([]byte(test.reply))
		r := reply{code: code, status: replyStatus(code, []byte(test.reply[4:]))}
		if got := th.has(&r); got != test.want {
			t.Errorf("%q, %q: %v", test.list, test.reply, got)
		}
	}
	for _, wrong := range []string{"550", "5.7.1", "4", "4.7.1.2", "4..1", "4.7.x", "42", "4.7.1000", "4.7.1 "} {
		if _, err := parseThrottle("smtp_throttle_replies", []string{wrong}); err == nil || !strings.HasPrefix(err.Error(), "smtp_throttle_replies: ") {
			t.Errorf("%q: %v", wrong, err)
		}
	}
}
