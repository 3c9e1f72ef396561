// Package script runs SMTP dialogues that are written down in files, against
// a real smtpd.Server whose neighbours (cleanup, trivial-rewrite, the DNS) are
// played by the test.
//
// A file is a txtar archive. Its comment says what is shown and which section
// of which RFC asks for it; the archive's files are:
//
//	main.cf    parameters, over the defaults of the runner
//	zone       DNS records, one a line: name type data
//	dialogue   what goes over the wire
//	policy     rules of a policy server at unix:$dir/policy, one a line:
//	           words that must be lines of the request, =>, the action;
//	           CLOSE and NONSENSE in the place of an action misbehave
//	filter     rules of a content filter at unix:$dir/filter, one a line: the
//	           beginning of a command, =>, the reply ("" is the greeting)
//	filtered   what that filter must have been told
//	milter     what the mail filters say by way of cleanup, one a line: an
//	           event (CONNECT, HELO, MAIL, RCPT, DATA, UNKNOWN) and words that
//	           must be among its arguments, =>, DISCARD or a reply
//	log        the log lines that must come of it
//	queue      the messages that must come of it
//
// Every other file is written to the directory that $dir stands for in
// main.cf, for tables.
//
// The lines of a dialogue:
//
//	C: text     the client sends text and CRLF
//	C- text     the client sends text as it is; \r \n \t \x00 \\ are escapes
//	S: text     the server sends this line and CRLF
//	S:EOF       the server closes the connection
//	close       the client closes the connection
//	dial        a connection is made before anything is expected
//	shut        the client closes its direction only
//	connect [ADDR]   a new connection, from ADDR
//	starttls [cert] [tls1.0] [tls1.2] [fails]   the client begins TLS
//
//	drain       the service is told to end
//
// Lines of the client that follow one another are sent in one write. In
// expectations, and in the logs, <ID> stands for a queue ID, <DATE> for a
// date, <PORT> for a port.
//
// The dialogues are played with the original, too, where it is installed;
// testdata/postfix/differences says where it answers or logs otherwise, and
// why that is right.
package script
