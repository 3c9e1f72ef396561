// Package adaptive is the law by which deliveries to a destination follow what it answers, and how long
// it takes: how many go on at once, and how fast one follows another. It needs no rules: it has the bounds
// that are configured, and looks for the best place between them.
//
// A [Course] is what has been learnt of one destination, from one source. It is a value in the
// scheduler (qmgr/sched): it reads no clock, and each of its calls takes constant time. [Read] says what a reply
// asks of the sender.
//
// # What a reply asks
//
//	Fewer   too many sessions at once; or 421 at the greeting, of which that is the most frequent sense
//	Slower  too many messages in a time, a reputation that has suffered, or anything that is "rate limited"
//	Later   "try again later", without a reason. One is nothing. A quarter of the last deliveries is Slower
//	Again   greylisting: the same mail is wanted again, and nothing else is asked
//	Away    nobody answered: a time-out, a refused connection. The scheduler says so, not the text
//	Nothing a success, or what concerns the recipient alone
//
// # Deliveries at once
//
// The window begins at initial_destination_concurrency and grows by one with each success, as with Postfix, until
// the first Fewer or Away. Then
//
//   - the level at which it was refused is remembered (the bad level); further refusals of the same moment
//     bring it down to the least that was refused;
//   - the window falls to seven tenths of it, once for what had begun before. Refusals of deliveries
//     that began before the window fell say nothing new;
//   - it grows back, by a quarter of what is missing with each window of successes, to just below the
//     bad level, and stays there;
//   - after a time (half a minute at first) it tries the bad level. A refusal doubles that time, up to
//     a quarter of an hour. When two windows of deliveries have passed there, the bad level moves up, by one, two, four
//     and so on, and the time is half a minute again.
//
// So a host with a fixed limit refuses one delivery in a quarter of an hour, in the long run, and a limit that was
// raised is found within that time. There is no oscillation: the window moves by one, at times that become
// rarer.
//
// At the floor a Fewer is a Slower: less at once is not possible.
//
// # Time between deliveries
//
// Without a Slower there is no such time. With one
//
//   - the destination rests: nothing begins for half a minute, or for as long as the reply says ("try again in 300
//     seconds"), or as long as it took the last time. Then one delivery goes. If it is refused as well, the rest is
//     twice as long. If not, the rest has been found, and is kept;
//   - the interval is set so that the rate is between what was sent before the refusal, which was too much, and
//     what got through in the long run, rests and all, which was not. Their geometric mean is taken,
//     and at least a tenth less than before the refusal. The first time nothing is known of the long run, and the rate is
//     half of what was sent;
//   - after each half minute without a refusal, and ten deliveries at least, the rate grows by a tenth, to
//     just below the bad rate. From there it is as with the window: a try after a time that doubles with each
//     refusal, from two minutes to half an hour, and growing steps when tries succeed. That time is six rests at
//     least, and each step of a try goes on for a rest at least: a try that fails costs a rest, and a host that counts
//     over a longer time than half a minute says so late;
//   - an interval that is less than half of what the window allows by itself is given up.
//
// # How long it takes
//
// The least time that a delivery took is remembered, apart for those that opened a connection, and is
// forgotten by a sixty-fourth with each window of deliveries. If the fastest delivery of a whole window took more than three times that, and
// half a second more, the host works at more than it can: the window falls by a fifth. While it is more than twice that,
// the window does not grow. The fastest is looked at, and not the mean, so that large messages do not count.
//
// # Bounds
//
// The window is never below the floor, nor above the ceiling; the interval never above the slowest, the rest
// never above the longest. Where there is a limit by configuration it holds besides: nothing here makes any limit
// more. What is learnt outlives a reload ([Memory]), and is brought within the new bounds.
//
// # Security
//
// Replies are those of strangers. At most 512 octets of one are read, by a search for fixed words. The worst
// that a host can say is that it wants its mail slowly, in the bounds that are set for all.
package adaptive
