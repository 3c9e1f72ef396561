"""An SMTP server that keeps mail: keeper.py PORT CERTIFICATE KEY DIRECTORY"""
import asyncio
import os
import ssl
import sys

from aiosmtpd.smtp import SMTP

port, cert, key, directory = sys.argv[1:]
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain(cert, key)


class Keeper:
    count = 0

    async def handle_RCPT(self, server, session, envelope, address, options):
        if address.startswith("unknown@"):
            return "550 5.1.1 no such user"
        envelope.rcpt_tos.append(address)
        return "250 2.1.5 Ok"

    async def handle_DATA(self, server, session, envelope):
        for address in envelope.rcpt_tos:
            self.count += 1
            new = os.path.join(directory, address.split("@")[0], "new")
            os.makedirs(new, exist_ok=True)
            temporary = os.path.join(directory, str(self.count))
            with open(temporary, "wb") as f:
                f.write(envelope.content.replace(b"\r\n", b"\n"))
            os.rename(temporary, os.path.join(new, str(self.count)))
        return "250 2.0.0 Ok"


async def main():
    keeper = Keeper()
    server = await asyncio.get_running_loop().create_server(
        lambda: SMTP(keeper, hostname="aiosmtpd.test", enable_SMTPUTF8=True, tls_context=context), "127.0.0.1", int(port))
    await server.serve_forever()


asyncio.run(main())
