package tlspolicy

import "crypto/tls"

// CipherName is OpenSSL's name of a cipher suite, as Postfix logs it: those of TLS 1.3 keep
// their names, others are called ECDHE-RSA-AES128-GCM-SHA256 and the like.
func CipherName(id uint16) string { return openSSLName(tls.CipherSuiteName(id)) }
