package tlspolicy

import (
	"crypto/tls"
	"strings"
)

// CipherName is OpenSSL's name of a cipher suite, as Postfix logs it: those of TLS 1.3 keep
// their names, others are called ECDHE-RSA-AES128-GCM-SHA256 and the like.
func CipherName(id uint16) string { return openSSLName(tls.CipherSuiteName(id)) }

// CipherBits is the key length of a cipher suite, in bits.
func CipherBits(id uint16) int {
	switch name := tls.CipherSuiteName(id); {
	case strings.Contains(name, "_128_"):
		return 128
	case strings.Contains(name, "3DES"):
		return 168
	}
	return 256
}
