package submit

import (
	"testing"

	"posthaste/internal/dsn"
	"posthaste/internal/proto"
)

// Why no message can be queued is what cleanup said last.
func TestRefusalAsCleanupSaid(t *testing.T) {
	t.Parallel()
	c := new(Client)
	for _, want := range []dsn.Status{proto.StatusElsewhere, dsn.S(4, 3, 0), proto.StatusElsewhere} {
		if _, err := c.checked(proto.SubmitReply{Code: 451, Status: want, Silent: true}); err != nil {
			t.Fatal(err)
		}
		if r := c.Refusal(nil); r.Code != 451 || r.Status != want || (r.Text == proto.TextElsewhere) != (want == proto.StatusElsewhere) {
			t.Errorf("%+v, want %v", r, want)
		}
	}
}
