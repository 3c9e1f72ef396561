// The table of TLS levels that Postfix had before smtp_tls_policy_maps.

package smtp

import (
	"context"
	"fmt"
	"strings"

	"posthaste/internal/tlspolicy"
)

// perSite is the level of the obsolete table smtp_tls_per_site, which counts
// only where there is no smtp_tls_policy_maps: its entries for the destination
// and for the server's name together. MAY gives way to any other, and to a
// stronger level of main.cf; NONE to MUST_NOPEERMATCH, and that to MUST.
func (d *delivery) perSite(ctx context.Context, t *target) (level tlspolicy.Level, found bool, err error) {
	c := d.a.tls
	may := false
	// Destination and server may both have an entry; they are the same where there
	// is no MX record.
	names := []string{d.hop.text}
	if !strings.EqualFold(d.hop.text, t.host) {
		names = append(names, t.host)
	}
	for _, name := range names {
		value, ok, err := c.sites.Lookup(ctx, name, false)
		if err != nil {
			return 0, false, err
		}
		if !ok {
			continue
		}
		switch strings.ToUpper(value) {
		case "MAY":
			may = true
			continue
		case "NONE":
		case "MUST_NOPEERMATCH":
			level = max(level, tlspolicy.Encrypt)
		case "MUST":
			level = tlspolicy.Verify
		default:
			return 0, false, fmt.Errorf("%s: %s: %q: expected NONE, MAY, MUST or MUST_NOPEERMATCH", c.sites.Title(), name, value)
		}
		found = true
	}
	if !found && may {
		return max(c.Level, tlspolicy.May), true, nil
	}
	return level, found, nil
}
