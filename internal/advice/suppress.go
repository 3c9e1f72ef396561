package advice

import (
	"errors"
	"io/fs"
	"slices"
	"strings"

	"posthaste/internal/config"
	"posthaste/internal/rfc5322"
	"posthaste/internal/suppress/suppressclient"
)

// suppression looks at the suppression list, and at what comes back to return paths.
func (c *checker) suppression() {
	has := func(name, command string) bool {
		return slices.ContainsFunc(c.services, func(s config.Service) bool { return s.Name == name && s.Command == command })
	}
	set := func(name string) []value {
		return slices.DeleteFunc(c.of(name), func(v value) bool { return v.text == "" })
	}
	lists, tenants := set("suppress_list_maps"), set("suppress_tenants")
	if len(tenants) > 0 && len(lists) == 0 && !has(suppressclient.Name, "suppressd") {
		c.warn(tenants[0], "master.cf has no line of suppress: mail of these tenants waits; \"posthaste upgrade-configuration\" adds it")
	}
	if len(lists) > 0 && !has(suppressclient.Name, "suppressd") {
		c.warn(lists[0], "master.cf has no line of suppress: mail of these senders waits; \"posthaste upgrade-configuration\" adds it")
	}
	for _, v := range lists {
		for _, e := range c.entries(v) {
			if !suppressclient.ValidList(e.value) && !strings.EqualFold(e.value, "DUNNO") {
				c.warn(e.at(v), "%s: %.100q is no name of a list: mail of that sender is refused for now", e.key, e.value)
			}
		}
	}
	paths := slices.DeleteFunc(c.of("return_path_domain"), func(v value) bool { return v.text == "" })
	switch {
	case len(paths) == 0:
	case len(lists) == 0 && len(tenants) == 0:
		c.warn(paths[0], "suppress_list_maps and suppress_tenants are empty: no mail leaves with a return path")
	case !has("comeback", "comeback"):
		c.warn(paths[0], "master.cf has no line of comeback, which takes what comes back; \"posthaste upgrade-configuration\" adds it")
	}
}

// askingField looks at a parameter that names a field by which mail tells this system something, and which is then removed.
func (c *checker) askingField(v value, such string) {
	if !rfc5322.FreeField(v.text) {
		c.stop(v, "no mail is taken: %q: expected the name of a header field without a meaning of its own, such as %s", v.text, such)
	}
}

// unsubscribing looks at links to unsubscribe.
func (c *checker) unsubscribing() {
	set := func(name string) bool {
		return slices.ContainsFunc(c.of(name), func(v value) bool { return v.text != "" })
	}
	for _, v := range c.of("unsubscribe_url") {
		if v.text == "" {
			continue
		}
		// Without its links the cleanup service takes no mail. Who may not read the secret cannot tell.
		if _, err := suppressclient.ReadLinks(c.cfg); err != nil && !errors.Is(err, fs.ErrPermission) {
			c.stop(v, "no mail is taken: %s", strings.TrimPrefix(err.Error(), v.name+": "))
		}
		for _, w := range c.of("unsubscribe_header") {
			c.askingField(w, "X-Unsubscribe")
		}
		if !slices.ContainsFunc(c.services, func(s config.Service) bool { return s.Command == "unsubscribe" }) {
			c.warn(v, "master.cf has no line of unsubscribe: links lead nowhere, unless another host serves them with the same secret and suppression list")
		}
		if !set("suppress_list_maps") && !set("suppress_tenants") {
			c.warn(v, "suppress_list_maps and suppress_tenants are empty: no message gets a link")
		}
		if !set("dkim_sign_maps") {
			c.warn(v, "dkim_sign_maps is empty: providers offer one click only where a DKIM signature covers the link (RFC 8058)")
		}
	}
}
