package cleanup

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"posthaste/internal/config"
	"posthaste/internal/dsn"
	"posthaste/internal/mail"
	"posthaste/internal/milter"
	"posthaste/internal/optout"
	"posthaste/internal/proto"
	"posthaste/internal/suppress/suppressclient"
	"posthaste/internal/table"
)

// linksConf turns links on, with a secret of t's.
func linksConf(t *testing.T) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(file, []byte("a secret of sixteen\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return "unsubscribe_url = https://u.test/u/\nunsubscribe_secret_file = " + file + "\n"
}

// TestUnsubscribe: who may ask for a link gets one, for the one recipient and for what the message is under; the field is gone.
// Others get none, and the log says why.
func TestUnsubscribe(t *testing.T) {
	t.Parallel()
	conf := linksConf(t) + "suppress_tenants = shop\nsuppress_list_maps = inline:{ {@news.test = letter} }\ntenant_header_clients = 192.0.2.0/28\ntenant_header = X-Tenant\n"
	for _, tc := range []struct {
		name   string
		fields string
		change func(s *proto.Submit)
		scope  string // of the link; empty: none is expected
		list   string // of the envelope
		log    string
	}{
		{"all", "X-Unsubscribe: all\n", nil, "shop/", "shop/", ""},
		{"one list", "x-unsubscribe:  offers \n", nil, "shop/offers", "shop/offers", ""},
		{"the sender's list", "X-Unsubscribe: letter\n", func(s *proto.Submit) { s.Envelope.Sender = "a@news.test" }, "shop/letter", "shop/letter", ""},
		{"all, of a list", "X-Unsubscribe: all\n", func(s *proto.Submit) { s.Envelope.Sender = "a@news.test" }, "shop/", "shop/letter", ""},
		{"a list without a tenant", "X-Unsubscribe: all\n", func(s *proto.Submit) { s.Envelope.Sender, s.Envelope.Tenant = "a@news.test", "" }, "letter", "letter", ""},
		{"by its name", "X-Unsubscribe: letter\n", func(s *proto.Submit) { s.Envelope.Sender, s.Envelope.Tenant = "a@news.test", "" }, "letter", "letter", ""},
		{"by another's", "X-Unsubscribe: offers\n", func(s *proto.Submit) { s.Envelope.Sender, s.Envelope.Tenant = "a@news.test", "" }, "", "letter", "its list is another one"},
		{"under no list", "X-Unsubscribe: all\n", func(s *proto.Submit) { s.Envelope.Tenant = "bank" }, "", "", "the message is under no suppression list"},
		{"the tenant behind the field", "X-Unsubscribe: all\nX-Tenant: shop\n", func(s *proto.Submit) { s.Envelope.Tenant, s.Envelope.Client.Addr = "", "192.0.2.7" }, "shop/", "shop/", ""},
		{"a network's", "X-Unsubscribe: all\n", func(s *proto.Submit) { s.Envelope.SASL.Username, s.Envelope.Client.Addr = "", "192.0.2.7" }, "shop/", "shop/", ""},
		{"a stranger's", "X-Unsubscribe: all\n", func(s *proto.Submit) { s.Envelope.SASL.Username, s.Envelope.Client.Addr = "", "192.0.2.99" }, "-", "shop/", ""},
		{"anonymous", "X-Unsubscribe: all\n", func(s *proto.Submit) { s.Envelope.SASL.Method, s.Envelope.Client.Addr = "ANONYMOUS", "192.0.2.99" }, "-", "shop/", ""},
		{"of its own", "List-Unsubscribe: <https://x.test/>\nX-Unsubscribe: all\n", nil, "", "shop/", "the message has a List-Unsubscribe header"},
		{"of its own, later", "X-Unsubscribe: all\nlist-unsubscribe-post: x\n", nil, "", "shop/", "the message has a List-Unsubscribe header"},
		{"no list's name", "X-Unsubscribe: shop/offers\n", nil, "", "shop/", `which names no list: "shop/offers"`},
		{"twice", "X-Unsubscribe: offers\nX-Unsubscribe: all\n", nil, "shop/offers", "shop/offers", ""},
		{"two recipients", "X-Unsubscribe: all\n", func(s *proto.Submit) {
			s.Envelope.Recipients = append(s.Envelope.Recipients, mail.Recipient{Address: "q@x.y"})
		}, "", "shop/", "the message has more than one recipient"},
		{"a copy", "X-Unsubscribe: all\n", func(s *proto.Submit) { s.BCC = []string{"archive@x.y"} }, "shop/", "shop/", ""},
		{"without notices", "X-Unsubscribe: all\n", func(s *proto.Submit) { s.Envelope.Recipients[0].Notify = dsn.NotifyNever }, "shop/", "shop/", ""},
		{"too long", "X-Unsubscribe: all\n", func(s *proto.Submit) { s.Envelope.Recipients[0].Address = strings.Repeat("a", 800) + "@x.y" }, "", "shop/", "the link would be too long"},
		{"queued again", "X-Unsubscribe: all\n", func(s *proto.Submit) { s.Flags |= proto.SubmitRequeued; s.Envelope.List = "shop/offers" }, "-", "shop/offers", ""},
		{"not asked for", "", nil, "", "shop/", ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			c := newCore(t, conf, nil)
			s := submission("remote", "r@x.y")
			s.Envelope.Tenant, s.Envelope.Campaign, s.Envelope.SASL.Username = "shop", "", "shop"
			if tc.change != nil {
				tc.change(s)
			}
			to := s.Envelope.Recipients[0].Address
			got, r := feed(c, s, crlfText("Message-Id: <a@b>\n"+tc.fields+"\nx\n"), 0)
			if r.Refused != nil {
				t.Fatal(r.Refused)
			}
			if r.Envelope.List != tc.list {
				t.Errorf("the message is under %q", r.Envelope.List)
			}
			var log strings.Builder
			for _, l := range r.Log {
				if l.Warning {
					log.WriteString(l.Text)
				}
			}
			if !strings.Contains(log.String(), tc.log) || tc.log == "" && log.Len() > 0 {
				t.Errorf("log %q", log.String())
			}
			if stays := strings.Contains(strings.ToLower(got), "x-unsubscribe"); stays != (tc.scope == "-") {
				t.Errorf("the field stays: %v\n%s", stays, got)
			}
			checkLink(t, c, got, tc.scope, tc.fields, to)
		})
	}
}

// checkLink looks at the link that a message has got, for a recipient.
func checkLink(t *testing.T, c *Core, got, scope, fields, to string) {
	t.Helper()
	_, link, has := strings.Cut(got, "\r\nList-Unsubscribe: <https://u.test/u/")
	if scope == "" || scope == "-" {
		if has || strings.Contains(got, "List-Unsubscribe-Post") {
			t.Errorf("there is a link:\n%s", got)
		}
		return
	}
	token, rest, _ := strings.Cut(link, ">\r\n")
	if !has || !strings.HasPrefix(rest, "List-Unsubscribe-Post: List-Unsubscribe=One-Click\r\n\r\nx\r\n") {
		t.Fatalf("there is no link:\n%s", got)
	}
	day := submission("remote").Envelope.Arrival
	tok, err := c.unsub.links.Parse(token, day)
	want := optout.Token{Day: optout.Day(day), QueueID: tok.QueueID, Recipient: to, Scope: scope, Tenant: tok.Tenant}
	if tenant, _ := suppressclient.Parts(scope); tenant != "" {
		want.Tenant = tenant
	}
	if err != nil || tok != want || tok.QueueID == "" {
		t.Errorf("%+v, %v, expected %+v", tok, err, want)
	}
}

// TestLinkForOthers: a message that a filter sends to others has no link of the recipient that it had, for each of whom it
// would work. What is not ours stays.
func TestLinkForOthers(t *testing.T) {
	t.Parallel()
	c := newCore(t, linksConf(t)+"suppress_tenants = shop\n", nil)
	for _, tc := range []struct {
		name   string
		change func(f *filtering)
		stays  bool
	}{
		{"nothing", func(*filtering) {}, true},
		{"another", func(f *filtering) { f.AddRecipient("<q@x.y>", "") }, false},
		{"another in its place", func(f *filtering) { f.DeleteRecipient("<r@x.y>"); f.AddRecipient("q@x.y", "") }, false},
		{"a copy", func(f *filtering) { f.AddRecipient("<archive@x.y>", "NOTIFY=NEVER") }, true},
		{"the same", func(f *filtering) { f.DeleteRecipient("<r@x.y>"); f.AddRecipient("r@x.y", "") }, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			s := submission("remote", "r@x.y")
			s.Envelope.Tenant, s.Envelope.SASL.Username = "shop", "shop"
			m := c.NewMessage(t.Context(), s)
			stored := bytes.Join(m.Write(t.Context(), []byte(crlfText("Message-Id: <a@b>\nX-Unsubscribe: all\nSubject: x\n\nx\n")), nil), nil)
			out, _ := m.Finish(t.Context(), nil)
			head, _, _ := strings.Cut(string(append(stored, bytes.Join(out, nil)...)), "\r\n\r\n")
			var content milter.Content
			for line := range strings.SplitSeq(strings.ReplaceAll(head, "\r\n ", "\n "), "\r\n") {
				name, _, _ := strings.Cut(line, ":")
				content.Fields = append(content.Fields, milter.Field{Name: name, Raw: []byte(line + "\r\n")})
			}
			had := len(content.Fields)
			tc.change(&filtering{m: m, ctx: t.Context()})
			m.unlink(&content)
			want := had
			if !tc.stays {
				want -= 2
			}
			if len(content.Fields) != want || content.HeaderChanged == tc.stays {
				t.Errorf("%d fields of %d are left, changed %v:\n%s", len(content.Fields), had, content.HeaderChanged, head)
			}
			if has := slices.ContainsFunc(content.Fields, func(f milter.Field) bool { return strings.HasPrefix(f.Name, "List-Unsubscribe") }); has != tc.stays {
				t.Errorf("there is a link: %v", has)
			}
		})
	}
}

// TestLinksField: the field that asks for a link has no meaning of its own.
func TestLinksField(t *testing.T) {
	t.Parallel()
	conf := linksConf(t)
	for field, ok := range map[string]bool{"X-Unsubscribe": true, "X-List": true, "Subject list": false, "To": false, "list-unsubscribe": false, "": false} {
		cfg, err := config.LoadString("compatibility_level = 3.6\n" + conf + "unsubscribe_header = " + field + "\n")
		if err != nil {
			t.Fatal(err)
		}
		if _, err = NewCore(cfg, nil, table.Options{}); (err == nil) != ok || err != nil && !strings.Contains(err.Error(), "unsubscribe_header: ") {
			t.Errorf("%q: %v", field, err)
		}
	}
}

// TestLinksSigned: a signature covers the link and what makes it one click, whatever dkim_sign_headers has.
func TestLinksSigned(t *testing.T) {
	t.Parallel()
	for conf, want := range map[string]bool{"": false, "unsubscribe_url = https://u.test/u/\n": true} {
		cfg, err := config.LoadString("compatibility_level = 3.6\ndkim_sign_maps = static:x\ndkim_sign_headers = from\n" + conf)
		if err != nil {
			t.Fatal(err)
		}
		s, err := newSigner(cfg, table.Options{})
		if err != nil {
			t.Fatal(err)
		}
		names := strings.Join(s.names, " ")
		if got := names == "from list-unsubscribe list-unsubscribe-post"; got != want {
			t.Errorf("%q: %s", conf, names)
		}
	}
}
