package cli

import (
	"errors"
	"fmt"
	"reflect"
	"testing"
)

func TestGetopt(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		args []string
		opts []Option
		rest []string
		err  string
	}{
		{nil, nil, nil, ""},
		{[]string{"-ab", "-c", "dir", "x", "-a"}, []Option{{'a', ""}, {'b', ""}, {'c', "dir"}}, []string{"x", "-a"}, ""},
		{[]string{"-acdir", "--", "-a"}, []Option{{'a', ""}, {'c', "dir"}}, []string{"-a"}, ""},
		{[]string{"-c", "-", "-"}, []Option{{'c', "-"}}, []string{"-"}, ""},
		{[]string{"-c", "-a"}, []Option{{'c', "-a"}}, nil, ""},
		{[]string{"-az"}, nil, nil, "invalid option -- 'z'"},
		{[]string{"-:"}, nil, nil, "invalid option -- ':'"},
		{[]string{"-ac"}, nil, nil, "option requires an argument -- 'c'"},
	} {
		opts, rest, err := Getopt(c.args, "abc:")
		if fmt.Sprint(err) != c.err && (err != nil || c.err != "") || !reflect.DeepEqual(opts, c.opts) || len(rest) != len(c.rest) ||
			len(rest) > 0 && !reflect.DeepEqual(rest, c.rest) {
			t.Errorf("%q: %v %q %v", c.args, opts, rest, err)
		}
	}
}

func TestStatus(t *testing.T) {
	t.Parallel()
	inner := errors.New("inner")
	err := fmt.Errorf("outer: %w", Errorf(ExitData, "x: %w", inner))
	if Status(err) != ExitData || !errors.Is(err, inner) || err.Error() != "outer: x: inner" {
		t.Errorf("%d %v", Status(err), err)
	}
	if Status(nil) != 0 || Status(inner) != ExitUnavailable {
		t.Error(Status(nil), Status(inner))
	}
}
