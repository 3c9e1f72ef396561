package dkimkey

import (
	"maps"
	"testing"
)

func TestTags(t *testing.T) {
	t.Parallel()
	got := Tags("v=DKIM1; k = rsa ;p=ab\r\n\t cd=;; nothing; p=second; =empty")
	want := map[string]string{"v": "DKIM1", "k": "rsa", "p": "abcd=", "": "empty"}
	if !maps.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}
