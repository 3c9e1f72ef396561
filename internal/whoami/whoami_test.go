package whoami

import "testing"

func TestRoot(t *testing.T) {
	t.Parallel()
	if u, ok := lookup(0, "/nonexistent"); !ok || u.Name != "root" {
		t.Errorf("user 0: %+v, %v", u, ok)
	}
}

// TestGetent: who is not in /etc/passwd is asked for, and what cannot be an
// answer is none.
func TestGetent(t *testing.T) {
	t.Parallel()
	const uid = 2147480001
	for _, c := range []struct {
		script string
		want   User
		ok     bool
	}{
		{`test "$1 $2 ${HOME-none}" = "passwd 2147480001 none" && echo 'ada:x:2147480001:100:Ada King,Room 1:/home/ada:/bin/sh'`, User{"ada", "Ada King,Room 1"}, true},
		{`echo 'eve:x:0:0:::'`, User{}, false},
		{`echo nonsense`, User{}, false},
		{`exit 2`, User{}, false},
	} {
		if u, ok := lookup(uid, "/bin/sh", "-c", c.script, "getent"); ok != c.ok || u != c.want {
			t.Errorf("%s: %+v, %v", c.script, u, ok)
		}
	}
}
