package selection

import (
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// Each target means what it says, has one text, and is found by one of the words of the mail that it means.
func TestTarget(t *testing.T) {
	t.Parallel()
	mails := map[string]*Mail{
		"direct": {Sender: "News@A.test", Transport: "smtp", Nexthop: "b.test", Domain: "B.test"},
		"hub":    {Sender: "bob@sub.a.test", Transport: "smtp", Nexthop: "[hub.test]:25", Domain: "b.test"},
		"null":   {Transport: "lmtp", Nexthop: "b.test", Domain: "c.b.test"},
		"dotted": {Sender: "x@d.test", Transport: "smtp.out", Nexthop: "[d.test]:25", Domain: "e.test"},
		"short":  {Sender: "x@d.test", Transport: "smtp.out", Nexthop: "hub", Domain: "i.test"},
		"port":   {Sender: "x@d.test", Transport: "smtp", Nexthop: "hub.e.test:26", Domain: "f.test"},
		"group":  {Sender: "x@g.test", Transport: "smtp", Nexthop: "g.test", Domain: "g.test", Tenant: "acme", Campaign: "spring"},
		"tenant": {Sender: "x@g.test", Transport: "smtp", Nexthop: "h.test", Domain: "h.test", Tenant: "acme"},
		"odd":    {Sender: `"a b"`, Transport: "local"},
	}
	for _, c := range []struct{ text, canonical, subject, means string }{
		{"b.test", "b.test", "delivery to b.test", "direct hub null"},
		{".B.Test", ".b.test", "delivery to .b.test", "null"},
		{"[HUB.test]:25", "[hub.test]:25", "delivery to [hub.test]:25", "hub"},
		{"smtp:b.test", "smtp:b.test", "delivery to smtp:b.test", "direct hub"},
		{"lmtp:", "lmtp:", "delivery to lmtp:", "null"},
		{"smtp.out:", "smtp.out:", "delivery to smtp.out:", "dotted short"},
		{"smtp.out:[D.test]:25", "smtp.out:[d.test]:25", "delivery to smtp.out:[d.test]:25", "dotted"},
		{"smtp.out:e.test", "smtp.out:e.test", "delivery to smtp.out:e.test", "dotted"},
		{"smtp.out:hub", "smtp.out:hub", "delivery to smtp.out:hub", "short"},
		{"hub.e.test:26", "hub.e.test:26", "delivery to hub.e.test:26", "port"},
		{"hub.e.test:submission", "hub.e.test:submission", "delivery to hub.e.test:submission", ""},
		{"*", "*", "delivery to *", "direct hub null dotted short port group tenant odd"},
		{"tenant=acme", "tenant=acme", "mail of tenant acme", "group tenant"},
		{"tenant=Acme", "tenant=Acme", "mail of tenant Acme", ""},
		{"campaign=acme/spring", "campaign=acme/spring", "mail of campaign acme/spring", "group"},
		{"domain=B.test", "domain=b.test", "delivery to domain b.test", "direct hub"},
		{"domain=.b.test", "domain=.b.test", "delivery to domain .b.test", "null"},
		{"nexthop=b.test", "nexthop=b.test", "delivery to next hop b.test", "direct null"},
		{"nexthop=smtp:B.test", "nexthop=smtp:b.test", "delivery to next hop smtp:b.test", "direct"},
		{"sender=News@a.test", "sender=news@a.test", "mail from news@a.test", "direct"},
		{"sender=<NEWS@a.test>", "sender=news@a.test", "mail from news@a.test", "direct"},
		{"sender=@A.test", "sender=@a.test", "mail from @a.test", "direct"},
		{"sender=@.a.test", "sender=@.a.test", "mail from @.a.test", "hub"},
		{"sender=<>", "sender=<>", "mail from <>", "null"},
		{"sender=MAILER-DAEMON", "sender=<>", "mail from <>", "null"},
		{`sender=/^b\S+@/`, `sender=/^b\S+@/`, `mail from /^b\S+@/`, "hub"},
		{"sender=/^$/", "sender=/^$/", "mail from /^$/", "null"},
		{"source=mta-1", "source=mta-1", "mail that goes from source mta-1", ""},
		{`sender="a b"@x.test`, `sender="a b"@x.test`, `mail from "a b"@x.test`, ""},
	} {
		target, err := ParseTarget(c.text)
		if err != nil {
			t.Errorf("%s: %v", c.text, err)
			continue
		}
		again, err := ParseTarget(target.String())
		if err != nil || again.String() != c.canonical || target.String() != c.canonical || target.Subject() != c.subject {
			t.Errorf("%s: %q, then %q, %v; %q", c.text, target, again, err, target.Subject())
		}
		by, value := target.Condition()
		if target, err = NewTarget(by, value); err != nil || target.String() != c.canonical {
			t.Errorf("%s: as a condition %q, %v", c.text, target, err)
		}
		// Which source mail goes from is not known before it goes.
		if err := New(now).Set(by, value); err != nil && by != "source" {
			t.Errorf("%s: no condition of a selection: %v", c.text, err)
		}
		for name, m := range mails {
			if got, want := target.Match(m), slices.Contains(strings.Fields(c.means), name); got != want {
				t.Errorf("%s means %s: %v", c.text, name, got)
			}
			if key := target.Key(); target.Match(m) && key != "" && !slices.Contains(slices.Collect(m.Keys), key) {
				t.Errorf("%s: %s is not found by %q, only by %q", c.text, name, key, slices.Collect(m.Keys))
			}
		}
	}
	for _, text := range []string{"", "a b", "tenant=", "tenant=a/b", "tenant=a->", "tenant=a->b c", "campaign=a/b->", "campaign=a->b", "campaign=acme", "campaign=acme/", "campaign=/x", "campaign=a/b/c", "domain=", "domain=[192.0.2.1]", "domain=smtp:x", "nexthop=", "sender=", "sender=a.test", "sender=@", "sender=@.",
		"sender=a@", "sender=/(/", "sender=a\nb@x.test", "sender=" + strings.Repeat("x", maxDestination) + "@y", "x@y"} {
		if target, err := ParseTarget(text); err == nil {
			t.Errorf("%.40q is accepted as %.40q", text, target)
		}
	}
	for _, c := range [][2]string{{"transport", ""}, {"transport", ".b"}, {"transport", "[x"}, {"transport", "a:b"}, {"reply", "x"}} {
		if target, err := NewTarget(c[0], c[1]); err == nil {
			t.Errorf("%s %q is accepted as %q", c[0], c[1], target)
		}
	}
	if target, err := NewTarget("transport", "Smtp"); err != nil || target.String() != "Smtp:" {
		t.Errorf("a transport: %q, %v", target, err)
	}
}

// Whatever is accepted is accepted in its only form as the same, is a condition of a selection, and is found.
func TestTargetProperties(t *testing.T) {
	t.Parallel()
	name := rapid.StringMatching(`(\.?[abA]{1,2}(\.[abB]){0,3}|\[a\]:25|\*|[ab]:|[ab]:[ab]|<>|/[ab.@]*/|[ab]@[ab](\.[ab])?|@\.?[ab]\.?[abA]?)`)
	rapid.Check(t, func(t *rapid.T) {
		target, err := NewTarget(rapid.SampledFrom([]string{"destination", "domain", "nexthop", "sender", "source", "transport"}).Draw(t, "by"), name.Draw(t, "value"))
		if err != nil {
			return
		}
		again, err := ParseTarget(target.String())
		if err != nil || again.String() != target.String() {
			t.Fatalf("%q is read as %q, %v", target, again, err)
		}
		m := &Mail{Sender: rapid.StringMatching(`([abA]@([ab]\.)?[abB])?`).Draw(t, "sender"), Transport: rapid.StringMatching(`[ab]`).Draw(t, "transport"),
			Nexthop: rapid.StringMatching(`(\[a\]:25|([ab]\.)?[abA])`).Draw(t, "nexthop"), Domain: rapid.StringMatching(`([ab]\.){0,2}[abB]`).Draw(t, "domain")}
		if target.Match(m) != again.Match(m) {
			t.Fatalf("%q means something else than %q", target, again)
		}
		if key := target.Key(); target.Match(m) && key != "" && !slices.Contains(slices.Collect(m.Keys), key) {
			t.Fatalf("%+v is not found by %q", *m, key)
		}
		if by, value := target.Condition(); New(now).Set(by, value) != nil && by != "source" {
			t.Fatalf("%q is no condition", target)
		}
	})
}

// What can be said of a domain alone: whether all mail to it, or from it, is meant.
func TestTargetPlaces(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		text, domain string
		place, from  bool
	}{
		{"b.test", "b.test", true, false}, {"b.test", "c.b.test", false, false}, {".b.test", "c.b.test", true, false}, {"smtp:b.test", "b.test", true, false},
		{"domain=b.test", "b.test", true, false}, {"nexthop=b.test", "b.test", true, false}, {"smtp:", "b.test", false, false}, {"*", "b.test", true, true},
		{"sender=@b.test", "b.test", false, true}, {"sender=@.b.test", "c.b.test", false, true}, {"sender=x@b.test", "b.test", false, false},
		{"sender=<>", "", false, true}, {"sender=<>", "b.test", false, false}, {"sender=/b/", "b.test", false, false},
	} {
		target, err := ParseTarget(c.text)
		if err != nil || target.Place(c.domain) != c.place || target.From(c.domain) != c.from {
			t.Errorf("%s and %q: place %v, from %v, %v", c.text, c.domain, target.Place(c.domain), target.From(c.domain), err)
		}
	}
}

// A tenant or a campaign may be meant at one site alone.
func TestGroupTarget(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ tenant, campaign, text, subject string }{
		{"acme", "", "tenant=acme->mx.b.test", "mail of tenant acme to site mx.b.test"},
		{"acme", "spring", "campaign=acme/spring->mx.b.test", "mail of campaign acme/spring to site mx.b.test"},
	} {
		target, err := GroupTarget(c.tenant, c.campaign, "MX.b.test")
		if err != nil {
			t.Fatal(err)
		}
		again, err := ParseTarget(c.text)
		if err != nil || again.String() != target.String() || target.String() != c.text || target.Subject() != c.subject || target.Site() != "mx.b.test" || !target.IsGroup() {
			t.Errorf("%s: %+v, %+v, %v", c.text, target, again, err)
		}
		for _, m := range []Mail{
			{Tenant: "acme", Campaign: "spring", Site: "mx.b.test"},
			{Tenant: "acme", Campaign: "spring", Site: "mx.c.test"},
			{Tenant: "acme", Campaign: "summer", Site: "mx.b.test"},
			{Tenant: "shop", Campaign: "spring", Site: "mx.b.test"},
			{Site: "mx.b.test"},
			{Tenant: "acme", Campaign: "spring"},
		} {
			want := m.Site == "mx.b.test" && m.Tenant == "acme" && (c.campaign == "" || m.Campaign == c.campaign)
			if got := target.Match(&m); got != want {
				t.Errorf("%s: %+v is meant: %v", c.text, m, got)
			}
			found := false
			for key := range m.Keys {
				found = found || key == target.Key()
			}
			if want && !found {
				t.Errorf("%s: %+v is not found by its keys", c.text, m)
			}
		}
	}
}
