package advice

import (
	"context"
	"slices"
	"strings"

	"posthaste/internal/mailauth/dkimkey"
	"posthaste/internal/table"
)

// signing looks whether the mail system's user can read the keys of the domains that main.cf names:
// mail of a domain whose key cannot be read waits. What is wrong with the tables, check says
// elsewhere.
func (u *unwise) signing() {
	specs := u.cfg.List("dkim_sign_maps")
	if len(specs) == 0 {
		return
	}
	maps := table.OpenMaps("dkim_sign_maps", specs, table.Options{})
	defer maps.Close()
	owner := u.cfg.String("mail_owner")
	var seen []string
	for _, parameter := range []string{"myorigin", "myhostname", "mydomain", "mydestination", "virtual_alias_domains", "virtual_mailbox_domains", "relay_domains"} {
		value, err := u.cfg.Value(parameter)
		if err != nil {
			continue
		}
		for _, domain := range table.SplitList(strings.ToLower(value)) {
			entries, err := dkimkey.Find(context.Background(), maps, "", domain)
			if err != nil {
				continue
			}
			for _, e := range entries {
				if slices.Contains(seen, e.File) {
					continue
				}
				seen = append(seen, e.File)
				if err := dkimkey.Readable(e.File, owner); err != nil {
					u.say("dkim_sign_maps", "mail of %s waits, as it cannot be signed: %v", domain, err)
				}
			}
		}
	}
}
