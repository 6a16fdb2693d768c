"""paho-mqtt's client, which here copies a large message once where it otherwise copies it five times.

It replaces two of paho's own methods, and does the same as they do. Where a later paho no longer calls them, messages
are copied more often, and nothing else changes.
"""

import struct
from typing import Any

from fednlp.errors import MissingDependency, install_command

try:
    from paho.mqtt.client import Client as PahoClient
    from paho.mqtt.client import MQTTMessage, MQTTv311
    from paho.mqtt.enums import CallbackAPIVersion, MQTTErrorCode
except ImportError:
    raise MissingDependency(
        f"a federation over MQTT needs paho-mqtt: run {install_command('mqtt')}"
    ) from None

__all__ = ["CallbackAPIVersion", "Client", "MQTTv311"]

_QOS, _QOS_1, _DUPLICATE, _RETAINED = 0x06, 0x02, 0x08, 0x01
_SHORT = struct.Struct("!H")


class Client(PahoClient):  # type: ignore[misc]
    """A client whose messages have views as payloads: of memory that is not used again."""

    def _packet_queue(self, command: int, packet: Any, mid: int, qos: int, info: Any = None) -> Any:
        """Queue a packet as a view, since paho slices what it has not sent yet again and again."""
        return super()._packet_queue(command, memoryview(packet), mid, qos, info)

    def _handle_publish(self) -> Any:
        """Hand a message of quality of service 1 over as it lies in the packet."""
        command, packet = self._in_packet["command"], memoryview(self._in_packet["packet"])
        start = 2 * _SHORT.size + (_SHORT.unpack_from(packet)[0] if len(packet) >= _SHORT.size else 0)
        if (
            command & _QOS > _QOS_1
        ):  # nobody subscribes to more, and paho would hold such messages without a bound
            return MQTTErrorCode.MQTT_ERR_PROTOCOL
        if command & _QOS != _QOS_1 or not 2 * _SHORT.size < start <= len(packet):
            packet.release()  # paho's own method grows it no more, and slices it
            return super()._handle_publish()
        (number,) = _SHORT.unpack_from(packet, start - _SHORT.size)
        message = MQTTMessage(mid=number, topic=bytes(packet[_SHORT.size : start - _SHORT.size]))
        message.payload = packet[start:]
        message.dup, message.retain = bool(command & _DUPLICATE), bool(command & _RETAINED)
        message.qos = 1
        self._handle_on_message(message)
        return self._send_puback(number)
