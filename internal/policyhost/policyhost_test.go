package policyhost

import (
	"bytes"
	"context"
	"encoding/xml"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"

	"posthaste/internal/config"
	"posthaste/internal/resolver"
	"posthaste/internal/table"
	"posthaste/internal/tlspolicy/mtasts"
)

const mainCF = `myhostname = mail.example.org
mydestination = example.org, bücher.example
virtual_mailbox_domains = example.net
policyhost_servers = submissions://mail.example.org, pop3s://mail.example.org:1995, imap://imap.example.org
`

func open(t testing.TB, text string) *site {
	t.Helper()
	s, err := tryOpen(t, text)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func tryOpen(t testing.TB, text string) (*site, error) {
	t.Helper()
	cfg, err := config.LoadString(text)
	if err != nil {
		t.Fatal(err)
	}
	return read(cfg, table.Options{Warn: func(string) {}})
}

// ask has the site answer a request. url has the name by which the server is called.
func ask(s *site, method, url, body string) *http.Response {
	w := httptest.NewRecorder()
	s.handler().ServeHTTP(w, httptest.NewRequest(method, url, strings.NewReader(body)))
	return w.Result()
}

func text(t testing.TB, r *http.Response) string {
	t.Helper()
	b, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestWhatIsServed(t *testing.T) {
	t.Parallel()
	sts, auto := "/.well-known/mta-sts.txt", "/mail/config-v1.1.xml"
	for _, c := range []struct {
		method, url string
		status      int
		kind        string
	}{
		{"GET", "https://mta-sts.example.org" + sts, 200, "text/plain; charset=utf-8"},
		{"HEAD", "https://mta-sts.example.org" + sts, 200, "text/plain; charset=utf-8"},
		{"GET", "https://MTA-STS.Example.NET.:443" + sts, 200, "text/plain; charset=utf-8"},
		{"GET", "https://mta-sts.xn--bcher-kva.example" + sts, 200, "text/plain; charset=utf-8"},
		{"GET", "https://mta-sts.example.com" + sts, 404, ""},
		{"GET", "https://mta-sts.sub.example.org" + sts, 404, ""},
		{"GET", "https://mta-sts.mta-sts.example.org" + sts, 404, ""},
		{"GET", "https://example.org" + sts, 404, ""},
		{"POST", "https://mta-sts.example.org" + sts, 405, ""},
		{"GET", "https://autoconfig.example.org" + auto, 200, "text/xml; charset=utf-8"},
		{"GET", "https://autoconfig.example.org" + auto + "?emailaddress=ann@example.org", 200, "text/xml; charset=utf-8"},
		{"GET", "https://autoconfig.example.org" + auto + "?emailaddress=ann@example.com", 404, ""},
		{"GET", "https://example.net/.well-known/autoconfig" + auto, 200, "text/xml; charset=utf-8"},
		{"GET", "https://mail.example.org" + auto + "?emailaddress=ann@example.net", 200, "text/xml; charset=utf-8"},
		{"GET", "https://autoconfig.example.com" + auto, 404, ""},
		{"GET", "https://autoconfig." + strings.Repeat("a.", 300) + "org" + auto, 404, ""},
		{"GET", "https://192.0.2.1" + auto, 404, ""},
		{"GET", "https://mail.example.org/email.mobileconfig?email=ann@example.org", 200, "application/x-apple-aspen-config; charset=utf-8"},
		{"GET", "https://mail.example.org/email.mobileconfig?email=ann@example.com", 404, ""},
		{"GET", "https://mail.example.org/email.mobileconfig?email=%01@example.org", 404, ""},
		{"GET", "https://mail.example.org/email.mobileconfig?email=@example.org", 404, ""},
		{"GET", "https://mail.example.org/email.mobileconfig?email=" + strings.Repeat("a", 320) + "@example.org", 404, ""},
		{"GET", "https://mail.example.org/email.mobileconfig", 404, ""},
		{"GET", "https://autodiscover.example.org/autodiscover/autodiscover.xml", 405, ""},
		{"GET", "https://mail.example.org/", 200, "text/plain; charset=utf-8"},
		{"GET", "https://mail.example.org/.well-known/", 404, ""},
		{"GET", "https://mail.example.org/../../etc/passwd", 307, ""},
	} {
		r := ask(open(t, mainCF), c.method, c.url, "")
		if kind := r.Header.Get("Content-Type"); r.StatusCode != c.status || c.kind != "" && kind != c.kind {
			t.Errorf("%s %s: %d, %s", c.method, c.url, r.StatusCode, kind)
		}
	}
	// Nothing is served that was not asked for in main.cf.
	s := open(t, "mydestination = example.org\npolicyhost_sts_mode = off\n")
	for _, url := range []string{"https://mta-sts.example.org" + sts, "https://autoconfig.example.org" + auto, "https://mail.example.org/email.mobileconfig?email=ann@example.org"} {
		if r := ask(s, "GET", url, ""); r.StatusCode != 404 {
			t.Errorf("%s: %d although it is off", url, r.StatusCode)
		}
	}
	if r := ask(s, "POST", "https://mail.example.org/autodiscover/autodiscover.xml", question("ann@example.org", "")); r.StatusCode != 404 {
		t.Errorf("Autodiscover: %d although there is no server", r.StatusCode)
	}
}

// What is served is what a sender reads, and each policy has an id of its own that a record can have.
func TestPolicy(t *testing.T) {
	t.Parallel()
	ids := make(map[string]string)
	for _, c := range []struct{ conf, want string }{
		{"", "version: STSv1\r\nmode: testing\r\nmx: mail.example.org\r\nmax_age: 604800\r\n"},
		{"policyhost_sts_mode = enforce\npolicyhost_sts_mx = *.example.org, Backup.Bücher.example\npolicyhost_sts_max_age = 1d\n",
			"version: STSv1\r\nmode: enforce\r\nmx: *.example.org\r\nmx: backup.xn--bcher-kva.example\r\nmax_age: 86400\r\n"},
		{"policyhost_sts_mode = none\npolicyhost_sts_mx =\n", "version: STSv1\r\nmode: none\r\nmax_age: 604800\r\n"},
	} {
		s := open(t, mainCF+c.conf)
		got := text(t, ask(s, "GET", "https://mta-sts.example.org/.well-known/mta-sts.txt", ""))
		if got != c.want {
			t.Errorf("%s: %q", c.conf, got)
		}
		p, err := mtasts.ParsePolicy(got, resolver.Names{})
		if err != nil || p.String() != got {
			t.Errorf("%s: read as %+v, %v", c.conf, p, err)
		}
		id, ok := mtasts.ParseRecord([]string{"v=STSv1; id=" + s.policy.ID() + ";"})
		if !ok || ids[id] != "" {
			t.Errorf("%s: id %q, %v", c.conf, id, ok)
		}
		ids[id] = c.conf
	}
}

func TestErrorsOfSettings(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ conf, want string }{
		{"policyhost_servers = imaps://mail.example.org", "one for incoming mail"},
		{"policyhost_servers = submissions://mail.example.org", "one for incoming mail"},
		{"policyhost_servers = mail.example.org:993", "expected"},
		{"policyhost_servers = ldap://mail.example.org", "ldap://mail.example.org: expected imaps"},
		{"policyhost_servers = imaps://mail", "the full name of a host"},
		{"policyhost_servers = imaps://", "the full name of a host"},
		{"policyhost_servers = imaps://mail.example.org:0", "a port"},
		{"policyhost_servers = imaps://mail.example.org:70000", "port"},
		{"policyhost_servers = imaps://ann@mail.example.org", "expected a protocol and a host"},
		{"policyhost_servers = imaps://mail.example.org/x", "expected a protocol and a host"},
		{"policyhost_sts_mx =", "policyhost_sts_mx is empty"},
		{"policyhost_sts_mx = mail", "policyhost_sts_mx: mail: expected"},
		{"policyhost_sts_mx = [192.0.2.1]", "expected the name of an MX host"},
		{"policyhost_sts_mx = " + strings.Repeat("mx.example.org ", 101), "101 hosts, expected at most 100"},
		{"policyhost_domains = /nowhere/at/all\npolicyhost_sts_mode = off", ""},
	} {
		_, err := tryOpen(t, "myhostname = mail.example.org\n"+c.conf+"\n")
		if c.want == "" {
			continue // a file that cannot be read is an error when it is asked
		}
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", c.conf, err)
		}
	}
}

// A table that fails does not make a domain unknown: senders would take the policy for gone.
func TestTableFails(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "domains")
	if err := os.WriteFile(file, []byte("example.org x\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	warned := ""
	cfg, err := config.LoadString(mainCF + "policyhost_domains = fail:broken, texthash:" + file + "\n")
	if err != nil {
		t.Fatal(err)
	}
	s, err := read(cfg, table.Options{Warn: func(text string) { warned += text + "\n" }})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ method, url, body string }{
		{"GET", "https://mta-sts.example.org/.well-known/mta-sts.txt", ""},
		{"GET", "https://autoconfig.example.org/mail/config-v1.1.xml", ""},
		{"GET", "https://mail.example.org/email.mobileconfig?email=ann@example.org", ""},
		{"POST", "https://mail.example.org/autodiscover/autodiscover.xml", question("ann@example.org", "")},
	} {
		warned = ""
		if r := ask(s, c.method, c.url, c.body); r.StatusCode != 503 || !strings.Contains(warned, "policyhost_domains") {
			t.Errorf("%s: %d, warned of %q", c.url, r.StatusCode, warned)
		}
	}
}

func TestAutoconfig(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ conf, name, display string }{
		{"", "%EMAILADDRESS%", "example.org"},
		{"policyhost_user_name = localpart\npolicyhost_display_name = Example & Sons <Ltd>\n", "%EMAILLOCALPART%", "Example &amp; Sons &lt;Ltd&gt;"},
	} {
		got := text(t, ask(open(t, mainCF+c.conf), "GET", "https://autoconfig.example.org/mail/config-v1.1.xml", ""))
		want := `<?xml version="1.0" encoding="UTF-8"?>
<clientConfig version="1.1">
 <emailProvider id="example.org">
  <domain>example.org</domain>
  <displayName>` + c.display + `</displayName>
  <displayShortName>` + c.display + `</displayShortName>
  <incomingServer type="pop3">
   <hostname>mail.example.org</hostname>
   <port>1995</port>
   <socketType>SSL</socketType>
   <authentication>password-cleartext</authentication>
   <username>` + c.name + `</username>
  </incomingServer>
  <incomingServer type="imap">
   <hostname>imap.example.org</hostname>
   <port>143</port>
   <socketType>STARTTLS</socketType>
   <authentication>password-cleartext</authentication>
   <username>` + c.name + `</username>
  </incomingServer>
  <outgoingServer type="smtp">
   <hostname>mail.example.org</hostname>
   <port>465</port>
   <socketType>SSL</socketType>
   <authentication>password-cleartext</authentication>
   <username>` + c.name + `</username>
  </outgoingServer>
 </emailProvider>
</clientConfig>
`
		if got != want {
			t.Errorf("got %s", got)
		}
	}
}

// question is what Outlook sends.
func question(address, schema string) string {
	if schema == "" {
		schema = responseSchema
	}
	var b bytes.Buffer
	b.WriteString(`<?xml version="1.0" encoding="utf-8"?><Autodiscover xmlns="` + requestSchema + `"><Request><EMailAddress>`)
	_ = xml.EscapeText(&b, []byte(address))
	b.WriteString(`</EMailAddress><AcceptableResponseSchema>` + schema + `</AcceptableResponseSchema></Request></Autodiscover>`)
	return b.String()
}

func TestAutodiscover(t *testing.T) {
	t.Parallel()
	s := open(t, mainCF)
	const url = "https://mail.example.org/autodiscover/autodiscover.xml"
	got := text(t, ask(s, "POST", "https://autodiscover.example.org/Autodiscover/Autodiscover.xml", question("a&b@example.org", "")))
	want := `<?xml version="1.0" encoding="UTF-8"?>
<Autodiscover xmlns="http://schemas.microsoft.com/exchange/autodiscover/responseschema/2006">
 <Response xmlns="http://schemas.microsoft.com/exchange/autodiscover/outlook/responseschema/2006a">
  <Account>
   <AccountType>email</AccountType>
   <Action>settings</Action>
   <Protocol>
    <Type>SMTP</Type>
    <Server>mail.example.org</Server>
    <Port>465</Port>
    <LoginName>a&amp;b@example.org</LoginName>
    <SSL>on</SSL>
    <Encryption>SSL</Encryption>
    <SPA>off</SPA>
    <AuthRequired>on</AuthRequired>
   </Protocol>
`
	if !strings.HasPrefix(got, want) || !strings.Contains(got, "<Type>IMAP</Type>\n    <Server>imap.example.org</Server>\n    <Port>143</Port>") ||
		!strings.Contains(got, "<Encryption>TLS</Encryption>") {
		t.Errorf("got %s", got)
	}
	for _, c := range []struct {
		name, body string
		code       string
	}{
		{"a foreign domain", question("ann@example.com", ""), "500"},
		{"no address", question("", ""), "500"},
		{"another schema", question("ann@example.org", "http://schemas.microsoft.com/exchange/autodiscover/mobilesync/responseschema/2006"), "601"},
		{"no XML", "{}", "600"},
		{"nothing", "", "600"},
		{"another document", "<html><body/></html>", "600"},
		{"entities", `<!DOCTYPE a [<!ENTITY b "bb"><!ENTITY c "&b;&b;">]>` + strings.Replace(question("x", ""), ">x<", ">&c;<", 1), "600"},
		{"too long", question(strings.Repeat("a", maxBody)+"@example.org", ""), "600"},
		{"deep", strings.Repeat("<a>", maxBody/3), "600"},
	} {
		r := ask(s, "POST", url, c.body)
		if got := text(t, r); r.StatusCode != 200 || !strings.Contains(got, "<ErrorCode>"+c.code+"</ErrorCode>") || strings.Contains(got, "<Account>") {
			t.Errorf("%s: %d %s", c.name, r.StatusCode, got)
		}
	}
}

// A profile is a property list with what was sent in it, whatever that has in it, and always the same for a user.
func TestProfile(t *testing.T) {
	t.Parallel()
	s := open(t, mainCF)
	const url = "https://autoconfig.example.org/email.mobileconfig?email="
	r := ask(s, "GET", url+"%3C%2Fstring%3E%22%26@example.org", "")
	got := text(t, r)
	if err := wellFormed(got); err != nil {
		t.Errorf("%v: %s", err, got)
	}
	if r.Header.Get("Content-Disposition") != `attachment; filename="example.org.mobileconfig"` {
		t.Error(r.Header)
	}
	for _, part := range []string{"<key>EmailAddress</key><string>&lt;/string&gt;&#34;&amp;@example.org</string>", "<key>EmailAccountType</key><string>EmailTypeIMAP</string>",
		"<key>IncomingMailServerHostName</key><string>imap.example.org</string>", "<key>OutgoingMailServerPortNumber</key><integer>465</integer>", "<true/>"} {
		if !strings.Contains(got, part) {
			t.Errorf("no %s in %s", part, got)
		}
	}
	ann, again, bob := text(t, ask(s, "GET", url+"ann@example.org", "")), text(t, ask(s, "GET", url+"ann@example.org", "")), text(t, ask(s, "GET", url+"bob@example.org", ""))
	if ann != again || strings.ReplaceAll(ann, "ann", "bob") == bob {
		t.Error("the identifiers do not stand for the user")
	}
}

func wellFormed(text string) error {
	d := xml.NewDecoder(strings.NewReader(text))
	for {
		if _, err := d.Token(); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
	}
}

// Whatever is sent, the answer is well-formed, and says nothing but what the configuration has and the address that was sent.
func FuzzRequests(f *testing.F) {
	f.Add("mta-sts.example.org", "/.well-known/mta-sts.txt", "", "")
	f.Add("autoconfig.example.org", "/mail/config-v1.1.xml", "emailaddress=ann@example.org", "")
	f.Add("mail.example.org", "/email.mobileconfig", "email=ann@example.org", "")
	f.Add("mail.example.org", "/autodiscover/autodiscover.xml", "", question("ann@example.org", ""))
	s := open(f, mainCF)
	f.Fuzz(func(t *testing.T, host, path, query, body string) {
		r := httptest.NewRequestWithContext(context.Background(), "GET", "https://x/", strings.NewReader(body))
		if r.Host, r.URL.Path, r.URL.RawQuery = host, path, query; body != "" {
			r.Method = "POST"
		}
		w := httptest.NewRecorder()
		s.handler().ServeHTTP(w, r)
		answer := w.Body.String()
		if !utf8.ValidString(answer) && w.Code == 200 {
			t.Errorf("not UTF-8: %q", answer)
		}
		if strings.HasPrefix(answer, "<?xml") {
			if err := wellFormed(answer); err != nil {
				t.Errorf("%v: %s", err, answer)
			}
		}
	})
}
