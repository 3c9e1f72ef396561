package dmarcreport

import (
	"archive/zip"
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// newForm is a report by RFC 9990, oldForm one as most receivers still send them.
const newForm = `<?xml version="1.0" encoding="UTF-8"?>
<feedback xmlns="urn:ietf:params:xml:ns:dmarc-2.0">
 <version>1.0</version>
 <report_metadata><org_name>Receiver A</org_name><email>r@a.test</email><report_id>1@a.test</report_id>
  <date_range><begin>1795651200</begin><end>1795737599</end></date_range><generator>x</generator></report_metadata>
 <policy_published><discovery_method>treewalk</discovery_method><domain>Example.org.</domain><p>none</p><testing>n</testing></policy_published>
 <extension><x:y xmlns:x="urn:x"><domain>other.test</domain></x:y></extension>
 <record><row><source_ip>192.0.2.1</source_ip><count> 100 </count><policy_evaluated><disposition>none</disposition><dkim>pass</dkim><spf>pass</spf></policy_evaluated></row>
  <identifiers><header_from>example.org</header_from><envelope_from>Example.org</envelope_from></identifiers>
  <auth_results><dkim><domain>bad.test</domain><selector>a</selector><result>fail</result></dkim><dkim><domain>example.org</domain><selector>s</selector><result>pass</result></dkim>
  <spf><domain>example.org</domain><scope>mfrom</scope><result>pass</result></spf></auth_results></record>
 <record><row><source_ip>2001:DB8:0::1</source_ip><count>3</count><policy_evaluated><disposition>pass</disposition><dkim>fail</dkim><spf>fail</spf>
  <reason><type>mailing_list</type><comment>c</comment></reason></policy_evaluated></row>
  <identifiers><header_from>news.example.org</header_from></identifiers><auth_results/></record>
</feedback>`

const oldForm = `<?xml version="1.0" encoding="iso-8859-1" ?>
<feedback><report_metadata><org_name>R` + "\xe9" + `ceiver B</org_name><report_id>77</report_id><date_range><begin>1795737600</begin><end>1795823999</end></date_range></report_metadata>
<policy_published><domain>example.org</domain><adkim>r</adkim><aspf>r</aspf><p>none</p><sp>none</sp><pct>100</pct></policy_published>
<record><row><source_ip>192.0.2.1</source_ip><count>20</count><policy_evaluated><disposition>none</disposition><dkim>pass</dkim><spf>pass</spf></policy_evaluated></row>
<identifiers><header_from>example.org</header_from></identifiers><auth_results><dkim><domain>example.org</domain><result>pass</result></dkim><spf><domain>example.org</domain><result>pass</result></spf></auth_results></record>
<record><row><source_ip>198.51.100.9</source_ip><count>7</count><policy_evaluated><disposition>none</disposition><dkim>fail</dkim><spf>fail</spf></policy_evaluated></row>
<identifiers><header_from>example.org</header_from></identifiers><auth_results><spf><domain>forger.test</domain><result>pass</result></spf></auth_results></record></feedback>`

// tlsForm is like the example of RFC 8460 appendix B.
const tlsForm = `{"organization-name":"Receiver A","date-range":{"start-datetime":"2026-11-26T00:00:00Z","end-datetime":"2026-11-26T23:59:59Z"},"contact-info":"x@a.test","report-id":"5065427c",
"policies":[{"policy":{"policy-type":"sts","policy-string":["version: STSv1"],"policy-domain":"Example.org","mx-host":["*.example.org"]},
"summary":{"total-successful-session-count":5326,"total-failure-session-count":303},
"failure-details":[{"result-type":"certificate-expired","sending-mta-ip":"2001:db8::1","receiving-mx-hostname":"mx1.example.org","failed-session-count":100},
{"result-type":"starttls-not-supported","receiving-mx-hostname":"mx2.example.org","failed-session-count":200}]}]}`

func gzipped(text string) string {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	z.Write([]byte(text))
	z.Close()
	return b.String()
}

func zipped(texts ...string) string {
	var b bytes.Buffer
	z := zip.NewWriter(&b)
	for i, text := range texts {
		w, _ := z.Create(fmt.Sprintf("%d.xml", i))
		w.Write([]byte(text))
	}
	z.Close()
	return b.String()
}

// mailed is a message with a report as its second part, as receivers send it.
func mailed(kind, content string) string {
	return "From: r@a.test\r\nSubject: Report Domain: example.org\r\nMIME-Version: 1.0\r\nContent-Type: multipart/mixed; boundary=b\r\n\r\n--b\r\nContent-Type: text/plain\r\n\r\nhello\r\n" +
		"--b\r\nContent-Type: application/pgp-signature\r\n\r\nno report\r\n--b\r\nContent-Type: " + kind + "\r\nContent-Transfer-Encoding: base64\r\n\r\n" +
		base64.StdEncoding.EncodeToString([]byte(content)) + "\r\n--b--\r\n"
}

const wantText = `example.org: 2 reports by Receiver A, Réceiver B, 2026-11-26 to 2026-11-27: 120 messages passed DMARC, 10 failed
  messages  DMARC  DKIM  SPF   done  source        from              signed by    envelope     reason
  7         fail   fail  fail  none  198.51.100.9  example.org       -            forger.test  -
  3         fail   fail  fail  pass  2001:db8::1   news.example.org  -            -            mailing_list
  120       pass   pass  pass  none  192.0.2.1     example.org       example.org  example.org  -
example.org: 1 report by Receiver A, 2026-11-26 to 2026-11-26 on TLS: 5326 sessions were good, 303 failed
  sessions  TLS                     policy  server
  200       starttls-not-supported  sts     mx2.example.org
  100       certificate-expired     sts     mx1.example.org
  3         unknown                 sts     -
  5326      good                    sts     -
`

// Both forms, packed in every way and sent twice, are counted once and put together.
func TestReport(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	var args []string
	for i, text := range []string{newForm, gzipped(newForm), mailed("application/gzip", gzipped(oldForm)), "From x Mon\n" + mailed("application/zip", zipped(newForm, "read me", oldForm)),
		"\xef\xbb\xbf\n     " + tlsForm, mailed("application/tlsrpt+gzip", gzipped(tlsForm)),
		"Content-Type: multipart/mixed; boundary=c\n\n--c\nContent-Type: message/rfc822\n\n" + mailed("application/zip", zipped(oldForm)) + "\n--c--\n"} {
		path := filepath.Join(dir, fmt.Sprint(i))
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		args = append(args, path)
	}
	var out, complaint bytes.Buffer
	if status := Command("posthaste dmarc", append([]string{"report"}, args...), nil, &out, &complaint); status != 0 || complaint.Len() > 0 || out.String() != wantText {
		t.Errorf("status %d: %s\n%s", status, complaint.String(), out.String())
	}
	out.Reset()
	status := Command("posthaste dmarc", []string{"report", "-j"}, strings.NewReader(mailed("text/xml; name=a.xml", newForm)), &out, &complaint)
	want := `{"kind":"dmarc","domain":"example.org","source":"2001:db8::1","from":"news.example.org","signer":"","envelope":"","dkim":"fail","spf":"fail","disposition":"pass","reason":"mailing_list","messages":3,"passed":false}` + "\n"
	if status != 0 || !strings.HasPrefix(out.String(), want) || strings.Count(out.String(), "\n") != 2 {
		t.Errorf("status %d: %s", status, out.String())
	}
	out.Reset()
	if status := Command("posthaste dmarc", []string{"report", "-j", "-"}, strings.NewReader(tlsForm), &out, &complaint); status != 0 ||
		!strings.HasPrefix(out.String(), `{"kind":"tls","domain":"example.org","policy":"sts","failure":"starttls-not-supported","mx":"mx2.example.org","sessions":200}`+"\n") {
		t.Errorf("status %d: %s", status, out.String())
	}
}

// What is no report, is broken or is too large is named, nothing of it counts, and what else there
// is is read.
func TestHostile(t *testing.T) {
	t.Parallel()
	rows := new(strings.Builder)
	for i := range maxRows + 1 {
		fmt.Fprintf(rows, "<record><row><source_ip>%d</source_ip><count>1</count></row></record>", i)
	}
	for _, c := range []struct{ name, text, want string }{
		{"a letter", "Subject: hello\n\nbody\n", "there is no report in it"},
		{"nothing", "", "there is no report in it"},
		{"a page", "<html><body/></html>", "there is no report in it"},
		{"no domain", "<feedback/>", "there is no report in it"},
		{"JSON", "{}", "there is no report in it"},
		{"empty archive", mailed("application/zip", zipped()), "there is no report in it"},
		{"cut off", newForm[:len(newForm)-300], "unexpected EOF"},
		{"cut off, packed", gzipped(newForm)[:200], "unexpected EOF"},
		{"bomb", gzipped(strings.Replace(newForm, "<version>", "<version>"+strings.Repeat(" ", maxUnpacked), 1)), "it is too large"},
		{"bomb in zip", zipped("<feedback>" + strings.Repeat(" ", maxUnpacked)), "it is too large"},
		{"packed again and again", gzipped(gzipped(gzipped(gzipped(gzipped(gzipped(newForm)))))), "it is too large"},
		{"one record", strings.Replace(newForm, "<auth_results/>", "<auth_results>"+strings.Repeat("<dkim/>", maxRecord/7)+"</auth_results>", 1), "it is too large"},
		{"one record, converted", strings.Replace(oldForm, "<auth_results>", "<auth_results>"+strings.Repeat("<dkim/>", maxRecord/6), 1), "it is too large"},
		{"many rows", strings.Replace(newForm, "<record>", rows.String()+"<record>", 1), "it is too large"},
		{"many parts", "Content-Type: multipart/mixed; boundary=b\n\n" + strings.Repeat("--b\n\n\n", maxParts+1) + "--b--\n", "it is too large"},
		{"much JSON", strings.Replace(tlsForm, `"failure-details":[`, `"failure-details":[`+strings.Repeat("{},", maxJSON/3), 1), "it is too large"},
		{"entities", strings.Replace(newForm, "<version>1.0", "<version>&lol;", 1), "invalid character entity"},
		{"character set", strings.Replace(oldForm, "iso-8859-1", "utf-7", 1), "unknown character set"},
	} {
		path := filepath.Join(t.TempDir(), "good")
		if err := os.WriteFile(path, []byte(tlsForm), 0o600); err != nil {
			t.Fatal(err)
		}
		var out, complaint bytes.Buffer
		status := Command("posthaste dmarc", []string{"report", "-", path}, strings.NewReader(c.text), &out, &complaint)
		if status != 65 || !strings.Contains(complaint.String(), "-: ") || !strings.Contains(complaint.String(), c.want) {
			t.Errorf("%s: status %d, %.300s", c.name, status, complaint.String())
		}
		if strings.Contains(out.String(), "DMARC") || !strings.Contains(out.String(), "5326") {
			t.Errorf("%s: %.300s", c.name, out.String())
		}
	}
	var out, complaint bytes.Buffer
	text := strings.NewReplacer("Receiver A", "A&#x9b;31m&#x202e;B", "<disposition>pass", "<disposition>"+strings.Repeat("x", 1000), "<count> 100 <", "<count>-5<").Replace(newForm)
	if status := Command("posthaste dmarc", []string{"report"}, strings.NewReader(text), &out, &complaint); status != 0 || strings.ContainsAny(out.String(), "\u009b\u202e") ||
		!strings.Contains(out.String(), "by A?31m?B,") || strings.Contains(out.String(), strings.Repeat("x", maxText+1)) || !strings.Contains(out.String(), "0 messages passed DMARC, 3 failed") {
		t.Errorf("status %d: %s%s", status, complaint.String(), out.String())
	}
}

func TestUsage(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{nil, {"reports"}, {"report", "-x"}} {
		var out, complaint bytes.Buffer
		if status := Command("posthaste dmarc", args, nil, &out, &complaint); status != 64 || !strings.Contains(complaint.String(), usage) {
			t.Errorf("%v: status %d, %s", args, status, complaint.String())
		}
	}
	var out, complaint bytes.Buffer
	if status := Command("posthaste dmarc", []string{"report", "/nowhere"}, nil, &out, &complaint); status != 65 || !strings.Contains(complaint.String(), "/nowhere") {
		t.Errorf("status %d: %s", status, complaint.String())
	}
}

// Whatever a stranger sends, reading ends, and what is printed has no control characters.
func FuzzFile(f *testing.F) {
	for _, text := range []string{newForm, oldForm, tlsForm, gzipped(newForm), zipped(newForm), mailed("application/zip", zipped(oldForm)), "Content-Type: multipart/mixed; boundary=\n\n--\n"} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		s := newSummary()
		_ = s.file(bytes.NewReader(text))
		var out bytes.Buffer
		s.text(&out)
		s.json(&out)
		for _, r := range out.String() {
			if r < ' ' && r != '\n' || r >= 0x7f && r < 0xa0 {
				t.Fatalf("%q is printed", out.String())
			}
		}
	})
}
