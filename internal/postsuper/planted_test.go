package postsuper

import (
	"os"
	"testing"

	"posthaste/internal/spooltool/faketest"
)

// Where the mail system's user has put a way to root's directory in place of maildrop, root removes
// nothing there.
func TestPlantedMaildrop(t *testing.T) {
	t.Parallel()
	s := faketest.New(t, "")
	secret := s.PlantMaildrop("b2", "")
	for _, id := range []string{"b2", "ALL"} {
		if out, status := run(s, "", "-d", id, "maildrop"); status == 0 {
			t.Errorf("-d %s: %s", id, out)
		}
		if _, err := os.Lstat(secret); err != nil {
			t.Error(err)
		}
	}
}
