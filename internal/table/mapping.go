package table

import (
	"context"
	"fmt"
	"strings"

	"posthaste/internal/rfc5322"
)

// MapAddress finds addr, in internal form, under the default keys and makes
// addresses of the answer: at least one, if found. "@domain" stands for the
// same user in that domain. rewrite puts each address into standard form.
// With propagate the extension that was taken off to find addr is put on each
// of them. An answer "<>" is the null address.
//
// It is what canonical, virtual and generic tables have in common.
func (m *Maps) MapAddress(ctx context.Context, s *Search, addr string, propagate bool, rewrite func(addr string) string) (list []string, found bool, err error) {
	value, ext, found, err := m.LookupAddress(ctx, s, addr, KeysDefault)
	if err != nil || !found {
		return nil, false, err
	}
	if value[0] == '@' {
		local, _, _ := rfc5322.Split(addr)
		value = rfc5322.Quote(strings.TrimSuffix(local, ext) + value)
	}
	if !propagate {
		ext = ""
	}
	if value == "<>" || value == `""` {
		return []string{""}, true, nil
	}
	// A list may have any number of members: there is no more than a token an octet.
	for _, a := range rfc5322.AppendAddresses(nil, value, 0) {
		if a.Addr == "" {
			continue
		}
		to := rewrite(a.Addr)
		if ext != "" {
			local, _, _ := rfc5322.Split(to)
			to = local + ext + to[len(local):]
		}
		list = append(list, to)
	}
	if len(list) == 0 {
		return nil, false, fmt.Errorf("%s: lookup of %q returns non-address result %q", m.Title(), addr, value)
	}
	return list, true, nil
}
