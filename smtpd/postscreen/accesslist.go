// postscreen_access_list: clients that need no test, and clients that have failed it
// before they came.

package postscreen

import (
	"context"
	"fmt"
	"strings"

	"posthaste/internal/access"
)

// A listing is what postscreen_access_list says of a client.
type listing uint8

const (
	listDunno  listing = iota // nothing: the tests decide
	listPermit                // no test is needed
	listReject                // the client has failed before it is tested
)

// listed looks the client up in postscreen_access_list. The first element that
// knows it decides; after an error the client is tested, like one that no element
// knows: a broken table must neither let spam in nor keep mail out.
func (c *Screen) listed(ctx context.Context, who *access.Client) (listing, error) {
	for _, w := range c.access {
		switch strings.ToLower(w) {
		case "permit_mynetworks":
			in, err := c.local(ctx, who)
			if err != nil {
				return listDunno, err
			}
			if in {
				return listPermit, nil
			}
			continue
		case "permit":
			return listPermit, nil
		case "reject":
			return listReject, nil
		case "dunno":
			return listDunno, nil
		}
		m := c.lists[w]
		if m == nil {
			return listDunno, fmt.Errorf("postscreen_access_list: unknown element %q", w)
		}
		value, found, err := m.LookupClientAddr(ctx, who.AddrText)
		if err != nil {
			return listDunno, err
		}
		if !found {
			continue
		}
		switch strings.ToLower(strings.TrimSpace(value)) {
		case "permit":
			return listPermit, nil
		case "reject":
			return listReject, nil
		case "dunno":
			return listDunno, nil
		default:
			return listDunno, fmt.Errorf("postscreen_access_list: %s: unknown result %q for %s", w, value, who.AddrText)
		}
	}
	return listDunno, nil
}
