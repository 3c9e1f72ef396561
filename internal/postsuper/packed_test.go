package postsuper

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"posthaste/internal/mail"
)

func TestPacked(t *testing.T) {
	t.Parallel()
	var p packed
	var want []target
	for i := range 50000 {
		x := target{mail.QueueID(fmt.Sprintf("%d%s", i, strings.Repeat("x", i%30))), []string{"incoming", "deferred", "hold", "corrupt"}[i*i%4], i%3 == 0}
		want = append(want, x)
		p.add(x)
	}
	octets := 0
	for _, b := range p.chunks {
		octets += cap(b)
	}
	if octets > 50000*25+packedChunk {
		t.Errorf("%d octets", octets)
	}
	var got []target
	if err := p.each(999, func(list []target) error {
		if len(list) != 999 && len(got)+len(list) != len(want) {
			t.Errorf("%d in a group", len(list))
		}
		got = append(got, list...)
		return nil
	}); err != nil || !slices.Equal(got, want) {
		t.Errorf("%d targets, %v", len(got), err)
	}
	p = packed{}
	if err := p.each(1, func([]target) error { return errors.New("called") }); err != nil {
		t.Error(err)
	}
	p.add(want[0])
	p.add(want[1])
	calls := 0
	if err := p.each(1, func([]target) error { calls++; return errors.New("no") }); err == nil || calls != 1 {
		t.Errorf("%d calls, %v", calls, err)
	}
}
