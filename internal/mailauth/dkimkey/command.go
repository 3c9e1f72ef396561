package dkimkey

import (
	"crypto"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
)

const usage = `usage: posthaste dkim genkey -d domain -s selector [-t rsa|ed25519] [-b bits] [-o directory]
       posthaste dkim record -d domain -s selector keyfile
genkey makes a key, writes it to directory/domain.selector.pem, and prints the
DNS record to publish and the entry for dkim_sign_maps; record prints those for
a key that there is.
`

// Command is posthaste dkim. It returns the exit status.
func Command(args []string, stdout, stderr io.Writer) int {
	if len(args) == 0 || args[0] != "genkey" && args[0] != "record" {
		fmt.Fprint(stderr, usage)
		return 64
	}
	fs := flag.NewFlagSet("posthaste dkim", flag.ContinueOnError)
	fs.SetOutput(stderr)
	fs.Usage = func() { fmt.Fprint(stderr, usage) }
	domain := fs.String("d", "", "")
	selector := fs.String("s", "", "")
	kind := fs.String("t", "rsa", "")
	bits := fs.Int("b", 2048, "")
	dir := fs.String("o", ".", "")
	if fs.Parse(args[1:]) != nil {
		return 64
	}
	wantArgs := 0
	if args[0] == "record" {
		wantArgs = 1
	}
	if !validName(*domain) || !validName(*selector) || fs.NArg() != wantArgs {
		fmt.Fprint(stderr, usage)
		return 64
	}
	var err error
	if args[0] == "record" {
		var key crypto.Signer
		if key, err = Read(fs.Arg(0)); err == nil {
			err = show(stdout, *domain, *selector, fs.Arg(0), key)
		}
	} else {
		err = generate(stdout, *domain, *selector, *kind, *bits, *dir)
	}
	if err != nil {
		fmt.Fprintf(stderr, "posthaste dkim: %v\n", err)
		return 1
	}
	return 0
}

// validName accepts what can be part of a file name and of a DNS name.
func validName(s string) bool {
	if s == "" || len(s) > 253 || s[0] == '.' || s[0] == '-' {
		return false
	}
	for i := 0; i < len(s); i++ {
		c := s[i] | 0x20
		if (c < 'a' || c > 'z') && (s[i] < '0' || s[i] > '9') && s[i] != '-' && s[i] != '.' && s[i] != '_' {
			return false
		}
	}
	return true
}

func generate(w io.Writer, domain, selector, kind string, bits int, dir string) error {
	if kind == "rsa" && (bits < 2048 || bits > 4096) {
		return fmt.Errorf("-b %d: expected 2048 to 4096: shorter keys are weak, longer ones are not accepted everywhere", bits)
	}
	if kind != "rsa" && kind != "ed25519" {
		return fmt.Errorf("-t %s: expected rsa or ed25519", kind)
	}
	key, text, err := Make(kind, bits)
	if err != nil {
		return err
	}
	path, err := filepath.Abs(filepath.Join(dir, domain+"."+selector+".pem"))
	if err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	if _, err = f.Write(text); err == nil {
		err = f.Sync()
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return err
	}
	return show(w, domain, selector, path, key)
}

// show prints what is to be published and configured.
func show(w io.Writer, domain, selector, path string, key crypto.Signer) error {
	record, err := Record(key)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(w, "; publish in DNS\n%s._domainkey.%s. IN TXT ( %s )\n\n# entry of dkim_sign_maps\n%s %s:%s\n",
		selector, domain, strings.Join(Strings(record), "\n\t"), domain, selector, path)
	return err
}

// maxString is how many octets a string of a TXT record has at most, RFC 1035 section 3.3.14.
const maxString = 255

// Strings writes a text as the strings of a TXT record, in quotes, as a master file has them.
func Strings(text string) (parts []string) {
	escape := strings.NewReplacer(`\`, `\\`, `"`, `\"`)
	for len(text) > maxString {
		parts, text = append(parts, `"`+escape.Replace(text[:maxString])+`"`), text[maxString:]
	}
	return append(parts, `"`+escape.Replace(text)+`"`)
}
