package inject

import (
	"encoding/base64"
	"io"
	"mime/quotedprintable"
)

// decoderOf reads a body as a mail reader does.
func decoderOf(encoding string, r io.Reader) io.Reader {
	switch encoding {
	case "base64":
		return base64.NewDecoder(base64.StdEncoding, r)
	case "quoted-printable":
		return quotedprintable.NewReader(r)
	}
	return r
}
