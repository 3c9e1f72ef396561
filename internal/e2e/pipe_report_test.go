package e2e

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
)

// pipeScript ends as the recipient's name says.
const pipeScript = `cat > /dev/null
case $1 in
kill*) kill -${1#kill} $$; sleep 60;;
quiet*) exit ${1#quiet};;
never) echo '5.7.9 no, thank you'; exit 1;;
later) echo '4.2.2 come again'; exit 67;;
well) echo '2.0.0 it is well'; exit 67;;
alone) echo '5.7.9'; exit 1;;
odd) echo '5.7.9999 is no status'; exit 67;;
shout) echo 'this goes to stderr' >&2; exit 67;;
lines) printf 'one\ntwo\n\n\tthree\n\n'; exit 67;;
after) printf 'a first line\n5.7.9 and a status\n'; exit 67;;
bell) printf 'a\007b\033[1mc\001\n'; exit 67;;
words) for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do echo 'there is no end to what this command has to say'; done; exit 67;;
ok) echo 'it is taken'; exit 0;;
*) echo "this is the output of $1"; exit $1;;
esac
`

// Commands that pipe runs end in every way, and the senders hear the same of it
// as from the original: of those that are to be tried again, too, since nothing
// may wait here.
func TestPipeReportsLikePostfix(t *testing.T) {
	t.Parallel()
	user := localUser(t)
	settings := options{main: reportSettings + `notify_classes =
maximal_queue_lifetime = 0
transport_maps = inline:{ plain.test=plain: final.test=final: small.test=small: }
plain_destination_recipient_limit = 1
final_destination_recipient_limit = 1
`, unstarted: true}
	settings.master = fmt.Sprintf(`plain unix - n n - - pipe user=%[1]s argv=/bin/sh {dir}/etc/say ${user}
final unix - n n - - pipe flags=DORX user=%[1]s argv=/bin/sh {dir}/etc/say ${user}
small unix - n n - - pipe size=400 user=%[1]s argv=/bin/sh {dir}/etc/say ${user}
`, user)
	theirs, ours := newPostfix(t, settings), newSystem(t, settings)
	var list []reported
	for code := range 82 {
		list = append(list, reported{rcpt: []string{fmt.Sprintf("<%d@plain.test>", code)}})
	}
	for _, name := range strings.Fields("126 127 200 255 kill1 kill9 kill15 quiet1 quiet67 quiet75 quiet71 quiet255 never later well alone odd shout lines after bell words") {
		list = append(list, reported{rcpt: []string{"<" + name + "@plain.test>"}})
	}
	list = append(list,
		reported{rcpt: []string{"<ok@plain.test> NOTIFY=SUCCESS ORCPT=rfc822;who@far.test"}},
		reported{rcpt: []string{"<ok@final.test> NOTIFY=SUCCESS"}},
		reported{rcpt: []string{"<67@final.test> NOTIFY=FAILURE ORCPT=rfc822;who@far.test"}},
		reported{rcpt: []string{"<ok@final.test>"}, content: "Delivered-To: OK@final.test\nSubject: loop\n\n"},
		reported{rcpt: []string{"<ok@plain.test>"}, content: "Delivered-To: ok@plain.test\nSubject: no loop\n\n"},
		reported{rcpt: []string{"<67@small.test>", "<other@small.test> NOTIFY=NEVER"}},
		reported{rcpt: []string{"<ok@small.test>"}, content: "Subject: large\n\n" + strings.Repeat("x\n", 300)},
	)
	for _, s := range []*system{theirs, ours} {
		setUpReports(s)
		s.write("etc/say", pipeScript)
		if err := os.Chmod(s.path("etc/say"), 0o755); err != nil {
			t.Fatal(err)
		}
		s.start()
		for i, m := range list {
			m.name, m.mail = "p"+strings.Repeat("a", i%26)+strings.Repeat("b", i/26), "<box@local.test>"
			if err := s.sendReported(m); err != nil {
				t.Fatalf("%v: %v", m.rcpt, err)
			}
		}
		s.waitLogN(`message-id=<p\w*@far\.test>`, len(list))
		s.eventually("the queue is empty", s.settled)
	}
	a, b := theirs.plainly(), ours.plainly()
	if len(a) != len(list)-2 { // what is taken is not told of
		t.Errorf("the original sends %d notices of %d messages", len(a), len(list))
	}
	if !slices.Equal(a, b) {
		t.Errorf("only the original reports\n%s\n\nonly ours:\n%s", strings.Join(without(a, b), "\n=====\n"), strings.Join(without(b, a), "\n=====\n"))
	}
}

// plainly is what has been reported, with long lines whole (the original breaks
// them after 79 characters), and one stand-in for what cannot be printed.
func (s *system) plainly() (list []string) {
	for _, text := range s.reported() {
		list = append(list, strings.NewReplacer("\n    ", " ", "_", "?").Replace(text))
	}
	slices.Sort(list)
	return list
}
