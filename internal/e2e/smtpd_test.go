package e2e

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"posthaste/internal/resolver/fakezone"
)

// What smtpd_dns_reply_filter takes out of answers is as if it were not there:
// a block list that has gone, and whose names all have one address, blocks
// nobody.
func TestDNSReplyFilter(t *testing.T) {
	t.Parallel()
	dns, err := fakezone.Must("1.0.0.127.dead.test. 60 A 192.0.2.99\n1.0.0.127.list.test. 60 A 127.0.0.2\n").Listen()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { dns.Close() })
	main := "resolver_address = " + dns.Addr + "\nsmtpd_peername_lookup = no\nsmtpd_client_restrictions = reject_rbl_client dead.test, reject_rbl_client list.test\n"
	ask := func(s *system) string {
		return strings.Join(s.dialogue(t, "", "EHLO client.test", "MAIL FROM:<a@from.test>", "RCPT TO:<b@to.test>")[3:], " ")
	}
	if got := ask(newSystem(t, options{main: main})); !strings.Contains(got, "blocked using dead.test") {
		t.Errorf("without a filter: %q", got)
	}
	s := newSystem(t, options{main: main + "smtpd_dns_reply_filter = regexp:{dir}/etc/filter\n", unstarted: true})
	s.write("etc/filter", "/ A 192\\.0\\.2\\.99$/ IGNORE\n")
	s.start()
	if got := ask(s); !strings.Contains(got, "blocked using list.test") {
		t.Errorf("with a filter: %q", got)
	}
	s.waitLog(`ignoring DNS RR: 1\.0\.0\.127\.dead\.test\. \d+ IN A 192\.0\.2\.99`)
}

// Clients get the certificate of the name that they ask for, from files that
// the table names or from its own text, which postmap -F has put there.
func TestServerNames(t *testing.T) {
	t.Parallel()
	s := newSystem(t, options{unstarted: true})
	for _, name := range []string{"own", "one.test", "two.test"} {
		makeCertificateFor(t, name, s.path("etc", name+".key"), s.path("etc", name+".pem"))
		var both []byte
		for _, file := range []string{name + ".key", name + ".pem"} {
			text, err := os.ReadFile(s.path("etc", file))
			if err != nil {
				t.Fatal(err)
			}
			both = append(both, text...)
		}
		s.write("etc/"+name+".chain", string(both))
	}
	files := fmt.Sprintf("one.test %s\n.two.test %s\n", s.path("etc/one.test.chain"), s.path("etc/two.test.chain"))
	s.write("etc/names", files)
	s.write("etc/text", files)
	if out, status := s.tool(nil, "postmap", "-F", "hash:"+s.path("etc/text")); status != 0 {
		t.Fatal(out)
	}
	other := freePort(t)
	s.configure("smtpd_tls_security_level = may\nsmtpd_tls_loglevel = 1\nsmtpd_tls_chain_files = {dir}/etc/own.chain\ntls_server_sni_maps = texthash:{dir}/etc/names\n",
		fmt.Sprintf("127.0.0.1:%d inet n - n - - smtpd -o tls_server_sni_maps=hash:%s\n", other, s.path("etc/text")))
	s.start()
	for _, port := range []int{s.port, other} {
		for asked, want := range map[string]string{"one.test": "one.test", "ONE.test": "one.test", "mx.two.test": "two.test", "two.test": "own", "three.test": "own", "": "own"} {
			if got := s.presented(port, asked); got != want {
				t.Errorf("port %d, %q: the certificate is that of %q, want %q", port, asked, got, want)
			}
		}
	}
	s.waitLogN(`Anonymous TLS connection established from \S+\[127\.0\.0\.1\] to one\.test: TLSv1\.3`, 2)
	if strings.Contains(s.log(), " to three.test: ") {
		t.Error("a name is logged that there is no certificate for")
	}
}

// presented is the name in the certificate that a client gets which asks for name.
func (s *system) presented(port int, name string) string {
	s.t.Helper()
	c, err := net.Dial("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	if err != nil {
		s.t.Fatal(err)
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(patience))
	read := func() string {
		buf := make([]byte, 4096)
		n, err := c.Read(buf)
		if err != nil {
			s.t.Fatal(err)
		}
		return string(buf[:n])
	}
	read()
	fmt.Fprint(c, "STARTTLS\r\n")
	if r := read(); !strings.HasPrefix(r, "220 ") {
		s.t.Fatal(r)
	}
	var got []*x509.Certificate
	secured := tls.Client(c, &tls.Config{InsecureSkipVerify: true, ServerName: name, VerifyConnection: func(st tls.ConnectionState) error {
		got = slices.Clone(st.PeerCertificates)
		return nil
	}})
	if err := secured.Handshake(); err != nil {
		s.t.Fatal(err)
	}
	fmt.Fprint(secured, "QUIT\r\n")
	return got[0].Subject.CommonName
}
