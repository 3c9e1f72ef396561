package users

import (
	"os"
	"slices"
	"testing"
)

func TestParseUsers(t *testing.T) {
	t.Parallel()
	byName, byID, groups := parse("root:x:0:0:root:/root:/bin/bash\nbad\n#c:x:1:1::/:\njoe:x:7:8:J,,:/home/joe:/bin/sh\njoe:x:9:9:::\n",
		"wheel:x:0:joe\njoe:x:8:joe\nmail:x:12:ann,joe\n")
	u := byName["joe"]
	if len(byName) != 2 || groups["mail"] != 12 || u == nil || byID[7] != u || u.GID != 8 || u.Home != "/home/joe" || u.Shell != "/bin/sh" || !slices.Equal(u.Groups, []int{0, 12}) {
		t.Errorf("%+v", u)
	}
	if me, err := new(System).LookupID(os.Getuid()); err != nil || me == nil || me.UID != os.Getuid() {
		t.Errorf("myself: %+v, %v", me, err)
	}
	if u, err := new(System).Lookup("no-such-user"); u != nil || err != nil {
		t.Errorf("nobody: %+v, %v", u, err)
	}
}
