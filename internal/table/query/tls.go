package query

import (
	"crypto/tls"
	"crypto/x509"
	"os"
	"path/filepath"
)

// Roots are the certificates in a file and in the files of a directory, either
// of which may be "". It is nil, for the system's own, if both are.
func (s *Settings) Roots(file, dir string) *x509.CertPool {
	if file == "" && dir == "" {
		return nil
	}
	var names []string
	if file != "" {
		names = append(names, file)
	}
	if dir != "" {
		entries, err := os.ReadDir(dir)
		if err != nil {
			s.Fail("directory of CA certificates", "%v", err)
		}
		for _, e := range entries {
			if !e.IsDir() {
				names = append(names, filepath.Join(dir, e.Name()))
			}
		}
	}
	pool := x509.NewCertPool()
	for _, n := range names {
		pem, err := os.ReadFile(n)
		switch {
		case err != nil:
			s.Fail("CA certificates", "%v", err)
		case !pool.AppendCertsFromPEM(pem) && n == file:
			s.Fail("CA certificates", "%s: no certificate in it", n)
		}
	}
	return pool
}

// Certificate is the client's certificate: none if neither file is named. Without
// a key file the key is in the certificate's.
func (s *Settings) Certificate(cert, key string) []tls.Certificate {
	if cert == "" && key == "" {
		return nil
	}
	if key == "" {
		key = cert
	}
	pair, err := tls.LoadX509KeyPair(cert, key)
	if err != nil {
		s.Fail("client certificate", "%v", err)
		return nil
	}
	return []tls.Certificate{pair}
}
